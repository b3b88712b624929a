/* Sessions' keys and values in shared blocks: what one session writes nobody else sees, memory grows and goes
 * with use, and snapshots share instead of copying. */
#include "unit.h"

#include "backend/backend.h"

#define ROWS 2000
#define COLUMNS 48
#define ROW_BYTES (COLUMNS * 2)
#define STATE 1000

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
    bench->backend = cpu_backend.open(&options, NULL);
    bench->kv[0] = (struct buffer_shape){DTYPE_BF16, ROWS, COLUMNS, "keys"};
    bench->kv[1] = (struct buffer_shape){DTYPE_BF16, ROWS, COLUMNS, "values"};
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
    int64_t left = (int64_t)cpu_backend.snapshot_bytes(bench->backend);
    cpu_backend.close(bench->backend);
    free(bench);
    return left == 0 ? 0 : -1;
}

static struct device_session *open_session(const struct bench *bench) {
    struct device_session *session = cpu_backend.session_open(bench->backend, &bench->layout, NULL);
    assert_non_null(session);
    return session;
}

/* Rows [begin, end) of both buffers, and the state, are made of `seed`. */
static void write_rows(struct device_session *session, uint32_t begin, uint32_t end, unsigned char seed) {
    unsigned char row[ROW_BYTES];
    for (uint32_t buffer = 0; buffer < 2; buffer++)
        for (uint32_t i = begin; i < end; i++) {
            memset(row, (unsigned char)(seed + i + buffer), sizeof row);
            assert_true(
                cpu_backend.write(session, SPACE_KV, buffer, (uint64_t)i * ROW_BYTES, row, sizeof row, NULL));
        }
    unsigned char state[STATE];
    memset(state, seed, sizeof state);
    assert_true(cpu_backend.write(session, SPACE_STATE, 0, 0, state, sizeof state, NULL));
}

static bool is_row(const unsigned char *row, uint32_t i, uint32_t buffer, unsigned char seed) {
    for (size_t byte = 0; byte < ROW_BYTES; byte++)
        if (row[byte] != (unsigned char)(seed + i + buffer))
            return false;
    return true;
}

static void check_rows(struct device_session *session, uint32_t begin, uint32_t end, unsigned char seed) {
    unsigned char row[ROW_BYTES];
    for (uint32_t buffer = 0; buffer < 2; buffer++)
        for (uint32_t i = begin; i < end; i++) {
            assert_true(
                cpu_backend.read(session, SPACE_KV, buffer, (uint64_t)i * ROW_BYTES, row, sizeof row, NULL));
            assert_true(is_row(row, i, buffer, seed));
        }
}

static void check_state(struct device_session *session, unsigned char seed) {
    unsigned char state[STATE], expected[STATE];
    memset(expected, seed, sizeof expected);
    assert_true(cpu_backend.read(session, SPACE_STATE, 0, 0, state, sizeof state, NULL));
    assert_memory_equal(state, expected, sizeof state);
}

static void snapshots_share_and_keep(void **state) {
    struct bench *bench = *state;
    struct device_session *first = open_session(bench), *second = open_session(bench);
    write_rows(first, 0, 1500, 1);
    uint64_t cost = cpu_backend.snapshot_cost(first, 1500);
    struct device_snapshot *snapshot = cpu_backend.snapshot_take(first, 1500, NULL);
    assert_non_null(snapshot);
    assert_int_equal(cpu_backend.snapshot_bytes(bench->backend), cost);
    assert_int_equal(cost, 1500 * 2 * ROW_BYTES + STATE);
    /* A second one adds its state and the rows of the block that is not full. */
    assert_int_equal(cpu_backend.snapshot_cost(first, 1500), (1500 - 1024) * 2 * ROW_BYTES + STATE);

    /* Another session goes on from it; neither disturbs the other or the snapshot. */
    assert_true(cpu_backend.snapshot_restore(second, snapshot, NULL));
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
    cpu_backend.session_close(first);
    assert_true(cpu_backend.snapshot_restore(second, snapshot, NULL));
    check_rows(second, 0, 1500, 1);
    check_state(second, 1);
    assert_int_equal(cpu_backend.snapshot_bytes(bench->backend), cost);
    cpu_backend.snapshot_free(snapshot);
    assert_int_equal(cpu_backend.snapshot_bytes(bench->backend), 0);
    check_rows(second, 0, 1500, 1);
    assert_true(cpu_backend.reset(second, NULL));
    check_state(second, 0);
    cpu_backend.session_close(second);
}

static void snapshots_are_read_in_any_pieces(void **state) {
    struct bench *bench = *state;
    struct device_session *session = open_session(bench);
    write_rows(session, 0, 1200, 5);
    struct device_snapshot *snapshot = cpu_backend.snapshot_take(session, 1100, NULL);
    assert_non_null(snapshot);
    cpu_backend.session_close(session);
    static unsigned char all[1100 * ROW_BYTES], pieces[sizeof all];
    for (uint32_t buffer = 0; buffer < 2; buffer++) {
        assert_true(cpu_backend.snapshot_read(snapshot, SPACE_KV, buffer, 0, all, sizeof all, NULL));
        for (uint32_t i = 0; i < 1100; i++)
            assert_true(is_row(all + i * (size_t)ROW_BYTES, i, buffer, 5));
        for (size_t at = 0, size = 1; at < sizeof all; at += size, size = size * 7 % 40961 + 1) {
            size = size < sizeof all - at ? size : sizeof all - at;
            assert_true(cpu_backend.snapshot_read(snapshot, SPACE_KV, buffer, at, pieces + at, size, NULL));
        }
        assert_memory_equal(all, pieces, sizeof all);
    }
    struct calla_error error = {0};
    assert_false(cpu_backend.snapshot_read(snapshot, SPACE_KV, 0, sizeof all, all, 1, &error));
    assert_false(cpu_backend.snapshot_read(snapshot, SPACE_KV, 2, 0, all, 1, &error));
    assert_false(cpu_backend.snapshot_read(snapshot, SPACE_STATE, 0, STATE - 1, all, 2, &error));
    assert_false(cpu_backend.snapshot_read(snapshot, SPACE_STEP, 0, 0, all, 1, &error));
    cpu_backend.snapshot_free(snapshot);
}

static void other_layouts_are_refused(void **state) {
    struct bench *bench = *state;
    struct device_session *session = open_session(bench);
    write_rows(session, 0, 700, 1);
    struct device_snapshot *snapshot = cpu_backend.snapshot_take(session, 700, NULL);
    assert_non_null(snapshot);
    struct calla_error error = {0};
    assert_null(cpu_backend.snapshot_take(session, 1999, &error));
    struct buffer_shape kv[2] = {bench->kv[0], bench->kv[1]};
    struct session_layout layout = bench->layout;
    layout.kv = kv;
    kv[0].rows = kv[1].rows = 699; /* too short */
    struct device_session *other = cpu_backend.session_open(bench->backend, &layout, NULL);
    assert_non_null(other);
    assert_false(cpu_backend.snapshot_restore(other, snapshot, &error));
    cpu_backend.session_close(other);
    kv[0].rows = kv[1].rows = 700; /* long enough: the number of rows need not be the same */
    other = cpu_backend.session_open(bench->backend, &layout, NULL);
    assert_true(cpu_backend.snapshot_restore(other, snapshot, &error));
    check_rows(other, 0, 700, 1);
    cpu_backend.session_close(other);
    kv[1].columns++;
    other = cpu_backend.session_open(bench->backend, &layout, NULL);
    assert_non_null(other);
    assert_false(cpu_backend.snapshot_restore(other, snapshot, &error));
    cpu_backend.session_close(other);
    cpu_backend.snapshot_free(snapshot);
    cpu_backend.session_close(session);
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
    for (int round = 0; round < 600; round++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint32_t a = (uint32_t)(random >> 33) % COUNT, b = (uint32_t)(random >> 40) % COUNT;
        uint32_t what = (uint32_t)(random >> 50) % 8, amount = (uint32_t)(random >> 20) % 700;
        if (what < 4) {
            if (all[a].position + amount > ROWS)
                amount = ROWS - all[a].position;
            for (uint32_t i = 0; i < amount; i++) {
                unsigned char row[ROW_BYTES], value = (unsigned char)(random >> (i % 24));
                memset(row, value, sizeof row);
                all[a].rows[all[a].position] = value;
                assert_true(cpu_backend.write(all[a].session, SPACE_KV, i % 2,
                                              (uint64_t)all[a].position * ROW_BYTES, row, sizeof row, NULL));
                assert_true(cpu_backend.write(all[a].session, SPACE_KV, (i + 1) % 2,
                                              (uint64_t)all[a].position * ROW_BYTES, row, sizeof row, NULL));
                all[a].position++;
            }
        } else if (what < 6) {
            cpu_backend.snapshot_free(all[a].snapshot);
            all[a].snapshot = cpu_backend.snapshot_take(all[a].session, all[a].position, NULL);
            assert_non_null(all[a].snapshot);
            all[a].kept = all[a].position;
            memcpy(all[a].kept_rows, all[a].rows, sizeof all[a].rows);
        } else if (what == 6 && all[b].snapshot != NULL) {
            assert_true(cpu_backend.snapshot_restore(all[a].session, all[b].snapshot, NULL));
            all[a].position = all[b].kept;
            memcpy(all[a].rows, all[b].kept_rows, sizeof all[a].rows);
        } else if (what == 7) {
            assert_true(cpu_backend.reset(all[a].session, NULL));
            all[a].position = 0;
        }
        if (all[a].position == 0)
            continue;
        static unsigned char rows[ROWS * ROW_BYTES];
        assert_true(cpu_backend.read(all[a].session, SPACE_KV, round % 2, 0, rows,
                                     (uint64_t)all[a].position * ROW_BYTES, NULL));
        for (uint32_t i = 0; i < all[a].position; i++)
            assert_int_equal(rows[i * (size_t)ROW_BYTES], all[a].rows[i]);
    }
    for (int i = 0; i < COUNT; i++) {
        cpu_backend.snapshot_free(all[i].snapshot);
        cpu_backend.session_close(all[i].session);
    }
    free(all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(snapshots_share_and_keep),
        cmocka_unit_test(snapshots_are_read_in_any_pieces),
        cmocka_unit_test(other_layouts_are_refused),
        cmocka_unit_test(random_histories),
    };
    return cmocka_run_group_tests(tests, bench_open, bench_close);
}
