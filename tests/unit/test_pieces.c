/* Reading weights in pieces: every piece once, in the order of the files, until one fails or the caller has
 * had enough. */
#include "unit.h"

#include <stdatomic.h>

#include "backend/pieces.h"

#define COUNT 100

struct owner {
    atomic_int times[COUNT], ended;
    uint32_t fails; /* piece, COUNT: none */
    atomic_bool out_of_order;
    uint64_t last; /* place, where there is one reader */
};

static bool read_one(void *argument, size_t reader, const struct piece *piece, struct calla_error *error) {
    struct owner *owner = argument;
    assert_true(reader < PIECES_MOST_READERS);
    if (piece == NULL) {
        atomic_fetch_add(&owner->ended, 1);
        return true;
    }
    atomic_fetch_add(&owner->times[piece->weight], 1);
    uint64_t place = (uint64_t)piece->file << 32 | piece->place;
    if (reader == 0 && place < owner->last)
        atomic_store(&owner->out_of_order, true);
    if (reader == 0)
        owner->last = place;
    return piece->weight != owner->fails || error_set(error, CALLA_IO, "piece %u", piece->weight);
}

static void fill(struct piece *list) {
    for (uint32_t i = 0; i < COUNT; i++)
        list[i] = (struct piece){.weight = i, .file = i % 3, .place = (i * 37) % COUNT, .bytes = 2};
}

static void every_piece_once(void **state) {
    (void)state;
    for (size_t readers = 1; readers <= 4; readers += 3) {
        struct piece list[COUNT];
        struct owner owner = {.fails = COUNT};
        struct weights weights = {.bytes = 2 * COUNT};
        struct pieces pieces = {&weights, NULL, list, COUNT, read_one, &owner};
        struct calla_error error;
        fill(list);
        assert_true(pieces_read(&pieces, readers, &error));
        for (int i = 0; i < COUNT; i++)
            assert_int_equal(atomic_load(&owner.times[i]), 1);
        assert_int_equal(atomic_load(&owner.ended), readers);
        assert_false(atomic_load(&owner.out_of_order));
    }
}

static void a_failure_ends_it(void **state) {
    (void)state;
    struct piece list[COUNT];
    struct owner owner = {.fails = 5};
    struct weights weights = {.bytes = 2 * COUNT};
    struct pieces pieces = {&weights, NULL, list, COUNT, read_one, &owner};
    struct calla_error error;
    fill(list);
    assert_false(pieces_read(&pieces, 1, &error));
    assert_int_equal(error.status, CALLA_IO);
    assert_string_equal(error.message, "piece 5");
    int read = 0;
    for (int i = 0; i < COUNT; i++)
        read += atomic_load(&owner.times[i]);
    assert_true(read < COUNT);
    assert_int_equal(atomic_load(&owner.ended), 1);
}

static bool until_20(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what;
    assert_true(done <= total && total == 2 * COUNT);
    *(uint64_t *)user = done;
    return done < 20;
}

static void a_caller_cancels(void **state) {
    (void)state;
    struct piece list[COUNT];
    struct owner owner = {.fails = COUNT};
    struct weights weights = {.bytes = 2 * COUNT};
    uint64_t done = 0;
    const struct calla_progress progress = {.report = until_20, .user = &done};
    struct pieces pieces = {&weights, &progress, list, COUNT, read_one, &owner};
    struct calla_error error;
    fill(list);
    assert_false(pieces_read(&pieces, 2, &error));
    assert_int_equal(error.status, CALLA_CANCELLED);
    assert_int_equal(done, 20);
    assert_int_equal(atomic_load(&owner.ended), 2);
}

static void readers_are_few(void **state) {
    (void)state;
    assert_int_equal(pieces_readers(0), 1);
    assert_int_equal(pieces_readers(3), 1);
    assert_in_range(pieces_readers(UINT64_MAX), 1, PIECES_MOST_READERS);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_piece_once),
                                       cmocka_unit_test(a_failure_ends_it),
                                       cmocka_unit_test(a_caller_cancels), cmocka_unit_test(readers_are_few)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
