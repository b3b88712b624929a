#include "text/reply_call.h"

#include <string.h>

#include "text/argument_types.h"
#include "text/json_python.h"

const json_t *reply_call_function(const json_t *tools, const char *name, size_t size) {
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const json_t *function = json_object_get(tool, "function");
        if (!json_is_object(function))
            function = tool;
        const json_t *declared = json_object_get(function, "name");
        if (json_is_string(declared) && json_string_length(declared) == size &&
            memcmp(json_string_value(declared), name, size) == 0)
            return function;
    }
    return NULL;
}

void reply_call_begin(struct reply_call *call, const json_t *tools, const char *name, size_t size) {
    reply_call_clear(call);
    const json_t *function = reply_call_function(tools, name, size);
    call->parameters = json_object_get(function, "parameters");
    if (call->parameters == NULL)
        call->parameters = json_object_get(function, "input_schema");
    call->seen = json_object();
    if (!buffer_append(&call->name, name, size) || call->seen == NULL)
        call->arguments.failed = true;
}

void reply_call_key(struct reply_call *call, const char *key, size_t size) {
    buffer_clear(&call->key);
    buffer_clear(&call->value);
    call->types = argument_types(call->parameters, argument_schema(call->parameters, key, size));
    call->streams = call->types == ARGUMENT_STRING;
    call->started = false;
    call->skipped = json_object_getn(call->seen, key, size) != NULL;
    if (!call->skipped && json_object_setn_new(call->seen, key, size, json_true()) != 0)
        call->arguments.failed = true;
    if (!buffer_append(&call->key, key, size))
        call->arguments.failed = true;
}

static void start_value(struct reply_call *call) {
    if (call->started)
        return;
    call->started = true;
    buffer_append_string(&call->arguments, call->arguments.size == 0 ? "{\"" : ",\"");
    json_escape_python(&call->arguments, call->key.data, call->key.size);
    buffer_append_string(&call->arguments, call->streams ? "\":\"" : "\":");
}

void reply_call_value(struct reply_call *call, const char *text, size_t size) {
    if (call->skipped || size == 0)
        return;
    if (call->streams) {
        start_value(call);
        json_escape_python(&call->arguments, text, size);
    } else if (!buffer_append(&call->value, text, size)) {
        call->arguments.failed = true;
    }
}

void reply_call_value_end(struct reply_call *call, bool whole) {
    if (call->skipped || (!whole && !call->started))
        return;
    start_value(call);
    if (call->streams)
        buffer_append_byte(&call->arguments, '"');
    else
        argument_write(&call->arguments, call->value.data, call->value.size, call->types);
}

void reply_call_end(struct reply_call *call) {
    buffer_append_string(&call->arguments, call->arguments.size == 0 ? "{}" : "}");
}

bool reply_call_expects(const struct reply_call *call, const char *key, size_t size) {
    return argument_schema(call->parameters, key, size) != NULL &&
           json_object_getn(call->seen, key, size) == NULL;
}

void reply_call_clear(struct reply_call *call) {
    buffer_free(&call->name);
    buffer_free(&call->arguments);
    buffer_free(&call->key);
    buffer_free(&call->value);
    json_decref(call->seen);
    memset(call, 0, sizeof *call);
}
