/* Sessions' keys and values, which share memory: what one session writes nobody else sees, memory grows and
 * goes with use, and snapshots share instead of copying. On the CPU, and with CUDA where a GPU is;
 * CALLA_TEST_CUDA_ONLY leaves the CPU out. */
#include "unit.h"

#include <stdlib.h>

#include "backend/backend.h"

#define ROWS 2000
#define STATE 1000
#define MOST_ROW_BYTES 2000

static const struct backend_class *class;
static bool on_cpu;
static uint32_t row_bytes; /* of one buffer: no power of two */

/* What sharing goes by: on the CPU 512 positions of a block; with CUDA a chunk of 2 MiB, in which rows of
 * both buffers lie side by side, each padded to 2,048 bytes. */
#define CUDA_CHUNK ((uint64_t)2 << 20)
#define CUDA_STATE 1024 /* rounded up */

struct bench {
    struct backend *backend;
    struct session_layout layout;
    struct buffer_shape kv[2], state[1];
};

static int bench_open(void **state) {
    struct bench *bench = calloc(1, sizeof *bench);
    if (bench == NULL)
        return -1;
    struct backend_options options = {.threads = 1};
    bench->backend = class->open(&options, NULL);
    bench->kv[0] = (struct buffer_shape){DTYPE_BF16, ROWS, row_bytes / 2, "keys"};
    bench->kv[1] = (struct buffer_shape){DTYPE_BF16, ROWS, row_bytes / 2, "values"};
    bench->state[0] = (struct buffer_shape){DTYPE_F32, 1, STATE / 4, "state"};
    bench->layout =
        (struct session_layout){.kv = bench->kv, .kv_count = 2, .state = bench->state, .state_count = 1};
    for (int i = 0; i < STEP_BUFFER_COUNT; i++)
        bench->layout.step[i] = (struct buffer_shape){DTYPE_F32, 1, 4, "step"};
    *state = bench;
    return bench->backend == NULL ? -1 : 0;
}

static int bench_close(void **state) {
    struct bench *bench = *state;
    int64_t left = (int64_t) class->snapshot_bytes(bench->backend);
    class->close(bench->backend);
    free(bench);
    return left == 0 ? 0 : -1;
}

static struct device_session *open_session(const struct bench *bench) {
    struct device_session *session = class->session_open(bench->backend, &bench->layout, NULL);
    assert_non_null(session);
    return session;
}

/* Rows [begin, end) of both buffers, and the state, are made of `seed`. */
static void write_rows(struct device_session *session, uint32_t begin, uint32_t end, unsigned char seed) {
    unsigned char row[MOST_ROW_BYTES];
    for (uint32_t buffer = 0; buffer < 2; buffer++)
        for (uint32_t i = begin; i < end; i++) {
            memset(row, (unsigned char)(seed + i + buffer), row_bytes);
            assert_true(
                class->write(session, SPACE_KV, buffer, (uint64_t)i * row_bytes, row, row_bytes, NULL));
        }
    unsigned char state[STATE];
    memset(state, seed, sizeof state);
    assert_true(class->write(session, SPACE_STATE, 0, 0, state, sizeof state, NULL));
}

static bool is_row(const unsigned char *row, uint32_t i, uint32_t buffer, unsigned char seed) {
    for (size_t byte = 0; byte < row_bytes; byte++)
        if (row[byte] != (unsigned char)(seed + i + buffer))
            return false;
    return true;
}

static void check_rows(struct device_session *session, uint32_t begin, uint32_t end, unsigned char seed) {
    unsigned char row[MOST_ROW_BYTES];
    for (uint32_t buffer = 0; buffer < 2; buffer++)
        for (uint32_t i = begin; i < end; i++) {
            assert_true(
                class->read(session, SPACE_KV, buffer, (uint64_t)i * row_bytes, row, row_bytes, NULL));
            assert_true(is_row(row, i, buffer, seed));
        }
}

static void check_state(struct device_session *session, unsigned char seed) {
    unsigned char state[STATE], expected[STATE];
    memset(expected, seed, sizeof expected);
    assert_true(class->read(session, SPACE_STATE, 0, 0, state, sizeof state, NULL));
    assert_memory_equal(state, expected, sizeof state);
}

static void snapshots_share_and_keep(void **state) {
    struct bench *bench = *state;
    struct device_session *first = open_session(bench), *second = open_session(bench);
    write_rows(first, 0, 1500, 1);
    uint64_t cost = class->snapshot_cost(first, 1500);
    struct device_snapshot *snapshot = class->snapshot_take(first, 1500, NULL);
    assert_non_null(snapshot);
    assert_int_equal(class->snapshot_bytes(bench->backend), cost);
    if (on_cpu) {
        assert_int_equal(cost, 1500 * 2 * row_bytes + STATE);
        /* A second one adds its state and the rows of the block that is not full. */
        assert_int_equal(class->snapshot_cost(first, 1500), (1500 - 1024) * 2 * row_bytes + STATE);
    } else {
        assert_int_equal(cost, 3 * CUDA_CHUNK + CUDA_STATE);
        assert_int_equal(class->snapshot_cost(first, 1500), CUDA_STATE);
    }

    /* Another session goes on from it; neither disturbs the other or the snapshot. */
    assert_true(class->snapshot_restore(second, snapshot, NULL));
    check_rows(second, 0, 1500, 1);
    check_state(second, 1);
    write_rows(second, 1500, 1800, 77);
    write_rows(first, 1500, 1900, 99);
    check_rows(second, 0, 1500, 1);
    check_rows(second, 1500, 1800, 77);
    check_rows(first, 0, 1500, 1);
    check_rows(first, 1500, 1900, 99);

    /* Whoever writes into what is shared gets a copy. */
    write_rows(second, 100, 101, 200);
    check_rows(second, 100, 101, 200);
    check_rows(second, 0, 100, 1);
    check_rows(second, 101, 1500, 1);
    check_rows(first, 0, 1500, 1);

    /* The snapshot outlives what it came from. */
    class->session_close(first);
    assert_true(class->snapshot_restore(second, snapshot, NULL));
    check_rows(second, 0, 1500, 1);
    check_state(second, 1);
    assert_int_equal(class->snapshot_bytes(bench->backend), cost);
    class->snapshot_free(snapshot);
    assert_int_equal(class->snapshot_bytes(bench->backend), 0);
    check_rows(second, 0, 1500, 1);
    assert_true(class->reset(second, NULL));
    check_state(second, 0);
    class->session_close(second);
}

static void snapshots_are_read_in_any_pieces(void **state) {
    struct bench *bench = *state;
    struct device_session *session = open_session(bench);
    write_rows(session, 0, 1200, 5);
    struct device_snapshot *snapshot = class->snapshot_take(session, 1100, NULL);
    assert_non_null(snapshot);
    class->session_close(session);
    size_t size_of_all = 1100 * (size_t)row_bytes;
    unsigned char *all = malloc(size_of_all), *pieces = malloc(size_of_all);
    assert_true(all != NULL && pieces != NULL);
    for (uint32_t buffer = 0; buffer < 2; buffer++) {
        assert_true(class->snapshot_read(snapshot, SPACE_KV, buffer, 0, all, size_of_all, NULL));
        for (uint32_t i = 0; i < 1100; i++)
            assert_true(is_row(all + i * (size_t)row_bytes, i, buffer, 5));
        for (size_t at = 0, size = 1; at < size_of_all; at += size, size = size * 7 % 40961 + 1) {
            size = size < size_of_all - at ? size : size_of_all - at;
            assert_true(class->snapshot_read(snapshot, SPACE_KV, buffer, at, pieces + at, size, NULL));
        }
        assert_memory_equal(all, pieces, size_of_all);
    }
    struct calla_error error = {0};
    assert_false(class->snapshot_read(snapshot, SPACE_KV, 0, size_of_all, all, 1, &error));
    assert_false(class->snapshot_read(snapshot, SPACE_KV, 2, 0, all, 1, &error));
    assert_false(class->snapshot_read(snapshot, SPACE_STATE, 0, STATE - 1, all, 2, &error));
    assert_false(class->snapshot_read(snapshot, SPACE_STEP, 0, 0, all, 1, &error));
    class->snapshot_free(snapshot);
    free(all);
    free(pieces);
}

static void other_layouts_are_refused(void **state) {
    struct bench *bench = *state;
    struct device_session *session = open_session(bench);
    write_rows(session, 0, 700, 1);
    struct device_snapshot *snapshot = class->snapshot_take(session, 700, NULL);
    assert_non_null(snapshot);
    struct calla_error error = {0};
    assert_null(class->snapshot_take(session, 1999, &error));
    struct buffer_shape kv[2] = {bench->kv[0], bench->kv[1]};
    struct session_layout layout = bench->layout;
    layout.kv = kv;
    kv[0].rows = kv[1].rows = 699; /* too short */
    struct device_session *other = class->session_open(bench->backend, &layout, NULL);
    assert_non_null(other);
    assert_false(class->snapshot_restore(other, snapshot, &error));
    class->session_close(other);
    kv[0].rows = kv[1].rows = 700; /* long enough: the number of rows need not be the same */
    other = class->session_open(bench->backend, &layout, NULL);
    assert_true(class->snapshot_restore(other, snapshot, &error));
    check_rows(other, 0, 700, 1);
    class->session_close(other);
    kv[1].columns++;
    other = class->session_open(bench->backend, &layout, NULL);
    assert_non_null(other);
    assert_false(class->snapshot_restore(other, snapshot, &error));
    class->session_close(other);
    class->snapshot_free(snapshot);
    class->session_close(session);
}

/* Many sessions and snapshots in a random order: each has what was last written to it. */
static void random_histories(void **state) {
    struct bench *bench = *state;
    enum { COUNT = 6 };
    struct {
        struct device_session *session;
        struct device_snapshot *snapshot;
        uint32_t position, kept;
        unsigned char rows[ROWS], kept_rows[ROWS]; /* the first byte of each of the keys' rows */
    } *all = calloc(COUNT, sizeof *all);
    assert_non_null(all);
    uint64_t random = 1;
    for (int i = 0; i < COUNT; i++)
        all[i].session = open_session(bench);
    for (int round = 0; round < (on_cpu ? 600 : 200); round++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint32_t a = (uint32_t)(random >> 33) % COUNT, b = (uint32_t)(random >> 40) % COUNT;
        uint32_t what = (uint32_t)(random >> 50) % 8, amount = (uint32_t)(random >> 20) % 700;
        if (what < 4) {
            if (all[a].position + amount > ROWS)
                amount = ROWS - all[a].position;
            for (uint32_t i = 0; i < amount; i++) {
                unsigned char row[MOST_ROW_BYTES], value = (unsigned char)(random >> (i % 24));
                memset(row, value, row_bytes);
                all[a].rows[all[a].position] = value;
                assert_true(class->write(all[a].session, SPACE_KV, i % 2,
                                         (uint64_t)all[a].position * row_bytes, row, row_bytes, NULL));
                assert_true(class->write(all[a].session, SPACE_KV, (i + 1) % 2,
                                         (uint64_t)all[a].position * row_bytes, row, row_bytes, NULL));
                all[a].position++;
            }
        } else if (what < 6) {
            class->snapshot_free(all[a].snapshot);
            all[a].snapshot = class->snapshot_take(all[a].session, all[a].position, NULL);
            assert_non_null(all[a].snapshot);
            all[a].kept = all[a].position;
            memcpy(all[a].kept_rows, all[a].rows, sizeof all[a].rows);
        } else if (what == 6 && all[b].snapshot != NULL) {
            assert_true(class->snapshot_restore(all[a].session, all[b].snapshot, NULL));
            all[a].position = all[b].kept;
            memcpy(all[a].rows, all[b].kept_rows, sizeof all[a].rows);
        } else if (what == 7) {
            assert_true(class->reset(all[a].session, NULL));
            all[a].position = 0;
        }
        if (all[a].position == 0)
            continue;
        static unsigned char rows[ROWS * MOST_ROW_BYTES];
        assert_true(class->read(all[a].session, SPACE_KV, round % 2, 0, rows,
                                (uint64_t)all[a].position * row_bytes, NULL));
        for (uint32_t i = 0; i < all[a].position; i++)
            assert_int_equal(rows[i * (size_t)row_bytes], all[a].rows[i]);
    }
    for (int i = 0; i < COUNT; i++) {
        class->snapshot_free(all[i].snapshot);
        class->session_close(all[i].session);
    }
    free(all);
}

/* `count` rows of both buffers from row `first` on, at once. */
static void write_many(struct device_session *session, uint32_t first, uint32_t count) {
    size_t size = count * (size_t)row_bytes;
    unsigned char *rows = malloc(size);
    assert_non_null(rows);
    for (size_t i = 0; i < size; i++)
        rows[i] = (unsigned char)(i * 31 + first);
    for (uint32_t buffer = 0; buffer < 2; buffer++)
        assert_true(class->write(session, SPACE_KV, buffer, (uint64_t)first * row_bytes, rows, size, NULL));
    free(rows);
}

/* What the device says: memory comes with the rows, and only once for all that have them. */
static void memory_grows_with_use(void **state) {
    struct bench *bench = *state;
    enum { USED = 20000, EACH = 1000, SNAPSHOTS = 8 };
    const int64_t mib = 1 << 20, used = (int64_t)USED * 4096;
    /* What the first ones take besides. */
    struct device_session *session = open_session(bench);
    struct device_snapshot *first = class->snapshot_take(session, 0, NULL);
    assert_non_null(first);
    class->session_close(session);
    struct buffer_shape kv[2] = {bench->kv[0], bench->kv[1]};
    struct session_layout layout = bench->layout;
    layout.kv = kv;
    kv[0].rows = kv[1].rows = 500000; /* 2 GB */
    int64_t before = (int64_t) class->free_memory(bench->backend);
    session = class->session_open(bench->backend, &layout, NULL);
    assert_non_null(session);
    int64_t opened = (int64_t) class->free_memory(bench->backend);
    for (uint32_t i = 0; i < USED; i += EACH)
        write_many(session, i, EACH);
    int64_t written = (int64_t) class->free_memory(bench->backend);
    struct device_snapshot *snapshots[SNAPSHOTS];
    for (int i = 0; i < SNAPSHOTS; i++) {
        snapshots[i] = class->snapshot_take(session, USED, NULL);
        assert_non_null(snapshots[i]);
    }
    int64_t kept = (int64_t) class->free_memory(bench->backend);
    struct device_session *others[2];
    for (int i = 0; i < 2; i++) {
        others[i] = class->session_open(bench->backend, &layout, NULL);
        assert_non_null(others[i]);
        assert_true(class->snapshot_restore(others[i], snapshots[i], NULL));
        write_many(others[i], USED, 1);
    }
    int64_t shared = (int64_t) class->free_memory(bench->backend);
    for (int i = 0; i < 2; i++)
        class->session_close(others[i]);
    for (int i = 0; i < SNAPSHOTS; i++)
        class->snapshot_free(snapshots[i]);
    assert_true(class->reset(session, NULL));
    int64_t reset = (int64_t) class->free_memory(bench->backend);
    class->session_close(session);
    class->snapshot_free(first);
    print_message("MiB: a session of a context of 2 GB takes %.1f, %.1f rows %.1f, %d snapshots %.1f, two "
                  "sessions that go on from them %.1f; after a reset %.1f are left\n",
                  (double)(before - opened) / (double)mib, (double)used / (double)mib,
                  (double)(opened - written) / (double)mib, SNAPSHOTS, (double)(written - kept) / (double)mib,
                  (double)(kept - shared) / (double)mib, (double)(opened - reset) / (double)mib);
    assert_true(before - opened <= 8 * mib);
    assert_true(opened - written >= used - 4 * mib && opened - written <= used + 4 * mib);
    assert_true(written - kept <= 4 * mib); /* a copy of the rows would be 78 */
    assert_true(kept - shared <= 16 * mib);
    assert_true(opened - reset <= 80 * mib);
}

static void a_context_beyond_the_memory_is_refused(void **state) {
    struct bench *bench = *state;
    struct buffer_shape kv[2] = {bench->kv[0], bench->kv[1]};
    struct session_layout layout = bench->layout;
    struct calla_error error = {0};
    layout.kv = kv;
    kv[0].rows = kv[1].rows = 1u << 30;
    assert_null(class->session_open(bench->backend, &layout, &error));
    assert_int_equal(error.status, CALLA_OUT_OF_MEMORY);
    assert_non_null(strstr(error.message, "a shorter context needs less): 4398047 MB are needed"));
}

static int run_on(const struct backend_class *backend) {
    class = backend;
    on_cpu = strcmp(backend->name, "cpu") == 0;
    row_bytes = on_cpu ? 96 : MOST_ROW_BYTES;
    print_message("On the backend %s:\n", backend->name);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(snapshots_share_and_keep),
        cmocka_unit_test(snapshots_are_read_in_any_pieces),
        cmocka_unit_test(other_layouts_are_refused),
        cmocka_unit_test(random_histories),
    };
    /* Of backends that tell how much memory is free. */
    const struct CMUnitTest of_devices[] = {
        cmocka_unit_test(memory_grows_with_use),
        cmocka_unit_test(a_context_beyond_the_memory_is_refused),
    };
    int failed = cmocka_run_group_tests(tests, bench_open, bench_close);
    if (class->free_memory != NULL)
        failed += cmocka_run_group_tests(of_devices, bench_open, bench_close);
    return failed;
}

int main(void) {
    int failed = getenv("CALLA_TEST_CUDA_ONLY") == NULL ? run_on(&cpu_backend) : 0;
    const struct backend_class *cuda = backend_find("cuda", NULL);
    return failed + (cuda != NULL ? run_on(cuda) : 0);
}
