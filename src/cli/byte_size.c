#include "cli/byte_size.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_unit(const char *text) {
    static const char *const ends[] = {"", "B", "b", "iB", "ib"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (strcmp(text, ends[i]) == 0)
            return true;
    return false;
}

bool byte_size_parse(const char *text, const char *option, uint64_t *bytes, struct calla_error *error) {
    static const char letters[] = "KMGT";
    char *end = NULL;
    bool number = isdigit((unsigned char)text[0]) && strspn(text, "0123456789.") < 24;
    double value = number ? strtod(text, &end) : -1;
    const char *letter = number && *end != 0 ? strchr(letters, toupper((unsigned char)*end)) : NULL;
    if (letter != NULL) {
        value = ldexp(value, 10 * (int)(letter - letters + 1));
        end++;
    }
    if (!number || text[0] == 0 || strpbrk(text, "xXeEpP") != NULL || !is_unit(end) || !(value < 0x1p60))
        return error_set(error, CALLA_BAD_INPUT,
                         "--%s must be a size in bytes, such as 512M or 4G, not \"%.100s\".", option, text);
    *bytes = (uint64_t)value;
    return true;
}
