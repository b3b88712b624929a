#include "unit.h"

#include "base/sha256.h"

static void expect(const char *bytes, size_t size, size_t step, const char *hex) {
    struct sha256 hash;
    sha256_start(&hash);
    for (size_t at = 0; at < size; at += step)
        sha256_add(&hash, bytes + at, size - at < step ? size - at : step);
    unsigned char digest[32];
    sha256_finish(&hash, digest);
    char found[65];
    sha256_hex(digest, found);
    assert_string_equal(found, hex);
}

/* The examples of FIPS 180-2. */
static void the_standard_vectors(void **state) {
    (void)state;
    expect("", 0, 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    expect("abc", 3, 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    const char *text = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    expect(text, 56, 56, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    char *letters = malloc(1000000);
    memset(letters, 'a', 1000000);
    for (size_t step = 1; step < 200; step += 21)
        expect(letters, 1000000, step, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(letters);
}

/* Lengths around the block's: where the padding needs a block of its own and where it does not. */
static void every_length_in_every_split(void **state) {
    (void)state;
    char bytes[200];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i * 7);
    for (size_t size = 0; size < sizeof bytes; size++) {
        struct sha256 hash;
        unsigned char whole[32], digest[32];
        sha256_start(&hash);
        sha256_add(&hash, bytes, size);
        sha256_finish(&hash, whole);
        for (size_t cut = 0; cut <= size; cut++) {
            sha256_start(&hash);
            sha256_add(&hash, bytes, cut);
            sha256_add(&hash, bytes + cut, size - cut);
            sha256_finish(&hash, digest);
            assert_memory_equal(digest, whole, 32);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_standard_vectors),
        cmocka_unit_test(every_length_in_every_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
