/* Mending UTF-8 and NFC. Text that is fine already, which is nearly all, is only looked at. In other text
 * only the runs that can change are worked on: a character that NFC leaves alone, followed by unstable ones
 * (those that change, have a combining class, or can join the one before). The table of unstable characters
 * is that of Hugging Face's normaliser, which knows Unicode 9; characters that it does not know pass
 * unchanged here too, whatever utf8proc knows about them. A run may be long (a hostile megabyte of accents),
 * so its marks are sorted by counting, not by the exchanges of utf8proc's own decomposition. */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "text/tokenizer_internal.h"

/* The length of the ASCII text at the start, in steps of eight bytes. */
static size_t ascii_prefix(const char *text, size_t size) {
    size_t done = 0;
    for (; size - done >= 8; done += 8) {
        uint64_t word;
        memcpy(&word, text + done, 8);
        if ((word & UINT64_C(0x8080808080808080)) != 0)
            break;
    }
    return done;
}

bool tokenizer_is_normal(const struct tokenizer *tokenizer, const char *text, size_t size) {
    for (size_t i = 0; i < size;) {
        i += ascii_prefix(text + i, size - i);
        if (i == size)
            break;
        struct utf8_character character = utf8_read(text + i, size - i);
        if (character.kind != UTF8_VALID ||
            (tokenizer->normalize && (tokenizer->classes[character.code] & CHARACTER_UNSTABLE) != 0))
            return false;
        i += character.size;
    }
    return true;
}

/* A run being normalised: code points, and as much room to sort marks into. */
struct run {
    int32_t *codes, *sorted;
    size_t count, capacity;
};

static bool run_reserve(struct run *run, size_t more) {
    if (run->count + more <= run->capacity)
        return true;
    size_t capacity = (run->count + more) * 2;
    int32_t *codes = realloc(run->codes, capacity * sizeof *codes);
    if (codes == NULL)
        return false;
    run->codes = codes;
    int32_t *sorted = realloc(run->sorted, capacity * sizeof *sorted);
    if (sorted == NULL)
        return false;
    run->sorted = sorted;
    run->capacity = capacity;
    return true;
}

static unsigned combining_class(int32_t code) {
    return (unsigned)utf8proc_get_property(code)->combining_class;
}

/* Appends the canonical decomposition of a code point. */
static bool run_decompose(struct run *run, uint32_t code) {
    enum { LONGEST = 8 }; /* no code point has more than four */
    if (!run_reserve(run, LONGEST))
        return false;
    int boundary = 0;
    utf8proc_ssize_t length =
        utf8proc_decompose_char((utf8proc_int32_t)code, run->codes + run->count, LONGEST,
                                UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &boundary);
    if (length < 1 || length > LONGEST) {
        run->codes[run->count] = (int32_t)code;
        length = 1;
    }
    run->count += (size_t)length;
    return true;
}

/* Sorts each row of marks in [first, count) by combining class, equal ones in the order they came. */
static void run_sort_marks(struct run *run, size_t first) {
    for (size_t begin = first, end; begin < run->count; begin = end + 1) {
        bool ordered = true;
        unsigned previous = 0, class;
        for (end = begin; end < run->count && (class = combining_class(run->codes[end])) != 0; end++) {
            ordered = ordered && class >= previous;
            previous = class;
        }
        if (ordered)
            continue;
        size_t places[257] = {0};
        for (size_t i = begin; i < end; i++)
            places[combining_class(run->codes[i]) + 1]++;
        for (unsigned i = 1; i < 257; i++)
            places[i] += places[i - 1];
        for (size_t i = begin; i < end; i++)
            run->sorted[places[combining_class(run->codes[i])]++] = run->codes[i];
        memcpy(run->codes + begin, run->sorted, (end - begin) * sizeof *run->codes);
    }
}

/* Letters that Unicode 16 joins with marks that older versions have too. To the original they are unknown. */
static bool composes_since_unicode_16(uint32_t code) {
    return code == 0x105d2 || code == 0x105da;
}

/* Normalises the run that starts at `text`: at most one stable character, then unstable ones. Returns the
 * bytes it took, 0 when memory is short. */
static size_t normalize_run(const struct tokenizer *tokenizer, const char *text, size_t size, struct run *run,
                            struct buffer *out) {
    run->count = 0;
    size_t taken = 0, first = 0;
    while (taken < size) {
        struct utf8_character character = utf8_read(text + taken, size - taken);
        if (character.kind != UTF8_VALID)
            break;
        bool unstable = (tokenizer->classes[character.code] & CHARACTER_UNSTABLE) != 0;
        if (!unstable && taken > 0)
            break;
        if (!run_decompose(run, character.code))
            return 0;
        taken += character.size;
        if (!unstable) {
            first = 1;
            if (composes_since_unicode_16(character.code))
                break;
        }
    }
    if (taken == 0)
        return 0;
    run_sort_marks(run, first);
    utf8proc_ssize_t count = utf8proc_normalize_utf32(run->codes, (utf8proc_ssize_t)run->count,
                                                      UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (utf8proc_ssize_t i = 0; i < count; i++) {
        char bytes[4];
        buffer_append(out, bytes, utf8_write((uint32_t)run->codes[i], bytes));
    }
    return taken;
}

bool tokenizer_normalize(const struct tokenizer *tokenizer, const char *text, size_t size,
                         struct buffer *out) {
    struct run run = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < size;) {
        /* [i, stable) needs no work; `head` is the last character in it, which what follows may change. */
        size_t stable = i, head = i;
        struct utf8_character character = {UTF8_VALID, 0, 0};
        while (stable < size) {
            character = utf8_read(text + stable, size - stable);
            if (character.kind != UTF8_VALID ||
                (tokenizer->normalize && (tokenizer->classes[character.code] & CHARACTER_UNSTABLE) != 0))
                break;
            head = stable;
            stable += character.size;
        }
        if (stable == size || character.kind != UTF8_VALID) {
            buffer_append(out, text + i, stable - i);
            if (stable < size)
                buffer_append_string(out, UTF8_REPLACEMENT);
            i = stable == size ? size : stable + character.size;
            continue;
        }
        buffer_append(out, text + i, head - i);
        size_t taken = normalize_run(tokenizer, text + head, size - head, &run, out);
        ok = taken > 0;
        i = head + taken;
    }
    free(run.codes);
    free(run.sorted);
    return ok && !out->failed;
}
