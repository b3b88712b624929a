/* Any bytes as the body of a request: rendered or refused, never a crash, and the control spans lie in order
 * inside the prompt. */
#include <stdlib.h>

#include "base/json.h"
#include "text/chat_template.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct calla_error error;
    chat_template_known((const char *)bytes, size);
    json_t *request = json_parse((const char *)bytes, size, "the request", &error);
    struct rendered out;
    if (request != NULL && chat_template_render(request, &out, &error)) {
        size_t end = 0;
        for (size_t i = 0; i < out.control_count; i++) {
            if (out.controls[i].begin < end || out.controls[i].end < out.controls[i].begin)
                abort();
            end = out.controls[i].end;
        }
        if (end > out.text.size)
            abort();
        rendered_free(&out);
    }
    json_decref(request);
    return 0;
}
