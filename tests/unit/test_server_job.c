/* A job between its connection and whoever answers: nobody waits, and nobody who sleeps is forgotten. */
#include "unit.h"

#include <stdio.h>

#include "checkpoint_fixture.h"
#include "server/job.h"

static struct checkpoint_fixture fixture;
static struct calla_model *model;

/* A connection that counts. */
struct sleeper {
    int slept, woken;
};

static void fall_asleep(void *connection) {
    ((struct sleeper *)connection)->slept++;
}

static void wake_up(void *connection) {
    ((struct sleeper *)connection)->woken++;
}

static struct job *new_job(struct sleeper *sleeper, const char *body) {
    const char *rest;
    struct refusal refusal = {0};
    struct exchange_context context = {.model = model, .model_name = "small", .context = 512};
    struct job *job = job_new(route_find("/v1/completions", &rest), NULL, NULL);
    assert_non_null(job);
    job->wake = wake_up;
    job->connection = sleeper;
    if (body != NULL) {
        struct exchange *exchange = exchange_new(EXCHANGE_COMPLETION, &context, body, strlen(body), &refusal);
        assert_non_null(exchange);
        job_set_exchange(job, exchange);
    }
    return job;
}

static void test_answer(void **state) {
    (void)state;
    struct sleeper sleeper = {0};
    struct job *job = new_job(&sleeper, NULL);
    struct buffer first = {0}, second = {0};
    assert_int_equal(job_poll(job, fall_asleep), JOB_PENDING);
    assert_int_equal(sleeper.slept, 1);
    buffer_append_string(&first, "first");
    buffer_append_string(&second, "second");
    job_answer(job, 200, "text/plain", &first);
    assert_int_equal(sleeper.woken, 1);
    job_answer(job, 500, "text/plain", &second);
    assert_int_equal(sleeper.woken, 1);
    assert_int_equal(job_poll(job, fall_asleep), JOB_ANSWERED);
    assert_int_equal(sleeper.slept, 1);
    assert_string_equal(job->output.data, "first");
    assert_int_equal(job->status, 200);
    job_detach(job);
    assert_false(atomic_load(&job->cancelled));
    job_release(job);
}

static void test_refusal(void **state) {
    (void)state;
    struct sleeper sleeper = {0};
    struct job *job = new_job(&sleeper, NULL);
    struct refusal refusal = {.status = 418, .type = "invalid_request_error", .message = "No tea."};
    job_refuse(job, &refusal);
    assert_int_equal(sleeper.woken, 0);
    assert_int_equal(job_poll(job, fall_asleep), JOB_ANSWERED);
    assert_int_equal(job->status, 418);
    assert_non_null(strstr(job->output.data, "No tea."));
    job_release(job);
}

static void test_cancelled(void **state) {
    (void)state;
    struct sleeper sleeper = {0};
    struct job *job = new_job(&sleeper, NULL);
    assert_int_equal(job_poll(job, fall_asleep), JOB_PENDING);
    job_cancel(job);
    assert_int_equal(sleeper.woken, 1);
    assert_int_equal(job_poll(job, fall_asleep), JOB_ABANDONED);
    job_release(job);
    /* A connection that goes cancels, and is never woken again. */
    job = new_job(&sleeper, NULL);
    assert_int_equal(job_poll(job, fall_asleep), JOB_PENDING);
    job_detach(job);
    assert_true(atomic_load(&job->cancelled));
    struct buffer late = {0};
    buffer_append_string(&late, "late");
    job_answer(job, 200, "text/plain", &late);
    assert_int_equal(sleeper.woken, 1);
    job_release(job);
}

/* The bytes that `job_take` gives until it sleeps or ends, in pieces of 7. */
static int64_t take_all(struct job *job, char *out, size_t *size) {
    int64_t taken;
    while ((taken = job_take(job, out + *size, 7, fall_asleep)) > 0)
        *size += (size_t)taken;
    out[*size] = 0;
    return taken;
}

static void test_reader_that_is_far_behind(void **state) {
    (void)state;
    static char text[1 << 20];
    struct sleeper sleeper = {0};
    struct job *job = new_job(&sleeper, "{\"prompt\":\"a\",\"stream\":true}");
    struct calla_event event = {.kind = CALLA_EVENT_CONTENT, .text = text, .size = sizeof text};
    char *piece = malloc(sizeof text);
    memset(text, 'x', sizeof text);
    job_start(job);
    assert_non_null(piece);
    /* What is taken is dropped: a reader that is a little behind costs no more than that. */
    for (int i = 0; i < 100; i++) {
        assert_true(job_event(job, &event));
        if (i > 0)
            for (size_t taken = 0; taken < sizeof text;)
                taken += (size_t)job_take(job, piece, sizeof text - taken, fall_asleep);
    }
    assert_true(job->output.capacity < 16 * sizeof text);
    int more = 0;
    while (job_event(job, &event))
        more++;
    assert_in_range(more, 8, JOB_MOST_UNSENT / sizeof text);
    assert_int_equal(job_take(job, piece, sizeof text, fall_asleep), JOB_BROKEN);
    free(piece);
    job_release(job);
}

static void test_stream(void **state) {
    (void)state;
    struct sleeper sleeper = {0};
    struct job *job = new_job(&sleeper, "{\"prompt\":\"a\",\"stream\":true}");
    char out[8192];
    size_t size = 0;
    assert_int_equal(job_poll(job, fall_asleep), JOB_PENDING);
    job_start(job);
    assert_int_equal(sleeper.woken, 1);
    assert_int_equal(job_poll(job, fall_asleep), JOB_STREAMING);
    assert_int_equal(job->status, 200);
    assert_int_equal(take_all(job, out, &size), 0);
    assert_int_equal(sleeper.slept, 2);
    /* Silence becomes a comment, once it has lasted. */
    job_progress(job, 3, 10);
    job_keep_alive(job, job->spoke + 4.9, 5);
    assert_int_equal(sleeper.woken, 1);
    job_keep_alive(job, job->spoke + 5.1, 5);
    assert_int_equal(sleeper.woken, 2);
    size = 0;
    assert_int_equal(take_all(job, out, &size), 0);
    assert_int_equal(out[0], ':');
    assert_non_null(strstr(out, "3"));
    assert_non_null(strstr(out, "10"));
    struct calla_event event = {.kind = CALLA_EVENT_CONTENT, .text = "hello", .size = 5};
    assert_true(job_event(job, &event));
    assert_int_equal(sleeper.woken, 3);
    assert_true(job_event(job, &event)); /* awake already */
    assert_int_equal(sleeper.woken, 3);
    struct calla_error failure = {CALLA_NUMERIC, "The model computed NaN."};
    job_fail(job, &failure);
    size = 0;
    assert_int_equal(take_all(job, out, &size), JOB_END);
    const char *hello = strstr(out, "hello");
    assert_non_null(hello);
    assert_non_null(strstr(hello + 5, "hello"));
    assert_non_null(strstr(hello, "computed NaN"));
    assert_int_equal(job->status, 200); /* it was sent long ago */
    job_keep_alive(job, job->spoke + 100, 5);
    assert_int_equal(take_all(job, out, &size), JOB_END);
    job_detach(job);
    assert_false(atomic_load(&job->cancelled));
    job_release(job);
}

static void test_stream_is_left(void **state) {
    (void)state;
    struct sleeper sleeper = {0};
    struct job *job = new_job(&sleeper, "{\"prompt\":\"a\",\"stream\":true}");
    struct calla_event event = {.kind = CALLA_EVENT_CONTENT, .text = "hello", .size = 5};
    char out[16];
    job_start(job);
    assert_true(job_event(job, &event));
    job_cancel(job);
    assert_false(job_event(job, &event)); /* ends the generation */
    assert_int_equal(job_take(job, out, sizeof out, fall_asleep), JOB_BROKEN);
    job_release(job);
}

/* One thread that answers, one that takes: every byte arrives, in order, and nobody sleeps for ever. */
struct relay {
    pthread_mutex_t lock;
    pthread_cond_t woken;
    bool asleep;
};

static void relay_sleep(void *connection) {
    struct relay *relay = connection;
    pthread_mutex_lock(&relay->lock);
    relay->asleep = true;
    pthread_mutex_unlock(&relay->lock);
}

static void relay_wake(void *connection) {
    struct relay *relay = connection;
    pthread_mutex_lock(&relay->lock);
    relay->asleep = false;
    pthread_cond_signal(&relay->woken);
    pthread_mutex_unlock(&relay->lock);
}

#define EVENTS 2000

static void *speak(void *argument) {
    struct job *job = argument;
    char text[16];
    struct calla_error failure = {CALLA_NUMERIC, "The end."};
    for (int i = 0; i < EVENTS; i++) {
        int size = snprintf(text, sizeof text, "<%d>", i);
        job_event(job,
                  &(struct calla_event){.kind = CALLA_EVENT_CONTENT, .text = text, .size = (size_t)size});
    }
    job_fail(job, &failure);
    job_release(job);
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    struct relay relay = {.asleep = false};
    pthread_mutex_init(&relay.lock, NULL);
    pthread_cond_init(&relay.woken, NULL);
    struct job *job = new_job(NULL, "{\"prompt\":\"a\",\"stream\":true}");
    job->wake = relay_wake;
    job->connection = &relay;
    job_start(job);
    job_hold(job);
    pthread_t speaker;
    assert_int_equal(pthread_create(&speaker, NULL, speak, job), 0);
    struct buffer all = {0};
    char piece[257];
    int64_t taken;
    while ((taken = job_take(job, piece, sizeof piece, relay_sleep)) >= 0) {
        buffer_append(&all, piece, (size_t)taken);
        pthread_mutex_lock(&relay.lock);
        while (relay.asleep)
            pthread_cond_wait(&relay.woken, &relay.lock);
        pthread_mutex_unlock(&relay.lock);
    }
    assert_int_equal(taken, JOB_END);
    pthread_join(speaker, NULL);
    const char *at = all.data;
    for (int i = 0; i < EVENTS; i++) {
        char text[16];
        snprintf(text, sizeof text, "<%d>", i);
        at = strstr(at, text);
        assert_non_null(at);
    }
    buffer_free(&all);
    job_detach(job);
    job_release(job);
    pthread_cond_destroy(&relay.woken);
    pthread_mutex_destroy(&relay.lock);
}

static int set_up(void **state) {
    struct calla_error error = {0};
    (void)state;
    if (!checkpoint_fixture_make(&fixture, 5))
        return -1;
    struct calla_model_options options = {.path = fixture.model, .tokenizer_only = true};
    model = calla_model_open(&options, &error);
    return model == NULL ? -1 : 0;
}

static int tear_down(void **state) {
    (void)state;
    calla_model_close(model);
    checkpoint_fixture_remove(&fixture);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answer),    cmocka_unit_test(test_refusal),
        cmocka_unit_test(test_cancelled), cmocka_unit_test(test_reader_that_is_far_behind),
        cmocka_unit_test(test_stream),    cmocka_unit_test(test_stream_is_left),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
