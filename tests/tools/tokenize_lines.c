/* Tokenises many texts in one process, for the comparisons in Python.
 *
 *   tokenize_lines FOLDER < requests > replies
 *
 * A request is a 4-byte flag (1: added tokens count anywhere in the text), a 4-byte size and the text. Its
 * reply is a 4-byte count and as many 4-byte ids, then a 4-byte size and the text that the streaming
 * detokeniser makes of them. Numbers are in the machine's byte order. At the end, one line of JSON on stderr
 * tells what loading and encoding took. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "text/tokenizer.h"

static double processor_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Where Linux tells it (getrusage would count what the parent had before it started this program); else 0. */
static long peak_kilobytes(void) {
    long peak = 0;
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (status != NULL && fgets(line, sizeof line, status) != NULL)
        if (strncmp(line, "VmHWM:", 6) == 0)
            peak = strtol(line + 6, NULL, 10);
    if (status != NULL)
        fclose(status);
    return peak;
}

static bool reply(const struct tokenizer *tokenizer, const struct calla_tokens *tokens) {
    struct buffer text = {0};
    struct detokenizer detokenizer;
    detokenizer_start(&detokenizer, tokenizer);
    for (size_t i = 0; i < tokens->count; i++)
        detokenizer_add(&detokenizer, tokens->ids[i], &text);
    uint32_t count = (uint32_t)tokens->count;
    bool ok = detokenizer_finish(&detokenizer, &text) && fwrite(&count, 4, 1, stdout) == 1 &&
              fwrite(tokens->ids, 4, count, stdout) == count;
    uint32_t size = (uint32_t)text.size;
    ok = ok && fwrite(&size, 4, 1, stdout) == 1 && fwrite(text.data, 1, size, stdout) == size;
    buffer_free(&text);
    return ok;
}

int main(int argument_count, char **arguments) {
    struct calla_error error;
    if (argument_count != 2) {
        fprintf(stderr, "usage: tokenize_lines FOLDER < requests > replies\n");
        return 2;
    }
    double start = processor_seconds();
    struct tokenizer *tokenizer = tokenizer_open(arguments[1], &error);
    if (tokenizer == NULL) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    double load_seconds = processor_seconds() - start, encode_seconds = 0;
    long load_kilobytes = peak_kilobytes();
    uint32_t header[2];
    bool ok = true;
    while (ok && fread(header, 4, 2, stdin) == 2) {
        size_t size = header[1];
        char *text = malloc(size + 1);
        struct calla_tokens tokens = {0};
        struct text_span all = {0, size};
        ok = text != NULL && fread(text, 1, size, stdin) == size;
        start = processor_seconds();
        if (ok && !tokenizer_encode(tokenizer, text, size, &all, header[0] == 1 ? 1 : 0, &tokens, &error)) {
            fprintf(stderr, "%s\n", error.message);
            ok = false;
        }
        encode_seconds += processor_seconds() - start;
        ok = ok && reply(tokenizer, &tokens);
        free(tokens.ids);
        free(text);
    }
    fprintf(stderr,
            "{\"load_seconds\": %.4f, \"load_peak_kilobytes\": %ld, \"encode_seconds\": %.6f, "
            "\"peak_kilobytes\": %ld}\n",
            load_seconds, load_kilobytes, encode_seconds, peak_kilobytes());
    tokenizer_close(tokenizer);
    return ok ? 0 : 1;
}
