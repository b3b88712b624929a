/* The one thread that owns the model: turns, queue, leavers, the end. The model is a small random one. */
#include "unit.h"

#include <stdio.h>
#include <time.h>

#include "base/file.h"
#include "base/system.h"
#include "checkpoint_fixture.h"
#include "scratch.h"
#include "server/scheduler.h"

static struct checkpoint_fixture fixture;
static struct log silent = {.descriptor = -1};

static void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

static struct scheduler *open_scheduler(uint32_t sessions, size_t queue, uint32_t context) {
    struct calla_error error = {0};
    struct scheduler_view view;
    struct scheduler_options options = {
        .model = {.path = fixture.model, .threads = 1, .cache_memory = CALLA_CACHE_DEFAULT},
        .sessions = sessions,
        .context = context,
        .queue = queue};
    struct scheduler *scheduler = scheduler_open(&options, &silent, &error);
    assert_non_null(scheduler);
    while (scheduler_model(scheduler) == NULL) {
        scheduler_look(scheduler, &view);
        if (view.state == SCHEDULER_FAILED)
            fail_msg("%s", scheduler_failure(scheduler)->message);
        nap();
    }
    return scheduler;
}

/* A job that asks for a completion, as a reader would have made it. */
static struct job *new_job(struct scheduler *scheduler, const char *body) {
    const char *rest;
    struct refusal refusal = {0};
    struct scheduler_view view;
    scheduler_look(scheduler, &view);
    struct exchange_context context = {
        .model = scheduler_model(scheduler), .model_name = "small", .context = view.context};
    struct job *job = job_new(route_find("/v1/completions", &rest), NULL, NULL);
    struct exchange *exchange = exchange_new(EXCHANGE_COMPLETION, &context, body, strlen(body), &refusal);
    assert_string_equal(refusal.message, "");
    assert_non_null(exchange);
    job_set_exchange(job, exchange);
    return job;
}

/* Never to be told to stop by an end token. */
#define ENDLESS "\"logit_bias\":{\"256\":-100,\"257\":-100,\"258\":-100},"

static void submit(struct scheduler *scheduler, struct job *job) {
    struct refusal refusal = {0};
    assert_true(scheduler_submit(scheduler, job, &refusal));
}

static bool answered(struct job *job) {
    pthread_mutex_lock(&job->lock);
    bool done = job->answered;
    pthread_mutex_unlock(&job->lock);
    return done;
}

static void wait_answered(struct job *job) {
    for (double until = system_seconds() + 200; !answered(job);) {
        assert_true(system_seconds() < until);
        nap();
    }
}

/* Until only the caller holds the job. */
static void wait_dropped(struct job *job, double seconds) {
    for (double until = system_seconds() + seconds; atomic_load(&job->holders) > 1;) {
        assert_true(system_seconds() < until);
        nap();
    }
}

static void test_answers(void **state) {
    (void)state;
    struct scheduler *scheduler = open_scheduler(2, 4, 512);
    struct job *job = new_job(scheduler, "{\"prompt\":\"hello\",\"max_tokens\":5}");
    submit(scheduler, job);
    wait_answered(job);
    wait_dropped(job, 10);
    assert_int_equal(job->status, 200);
    assert_non_null(strstr(job->output.data, "\"text_completion\""));
    assert_int_equal(job->numbers.prompt_tokens, 5);
    assert_int_equal(job->numbers.computed_tokens, 5);
    assert_in_range(job->numbers.reply_tokens, 1, 5);
    assert_non_null(job->numbers.finish);
    job_release(job);
    scheduler_stop(scheduler);
    scheduler_close(scheduler);
}

/* The short request comes last and is done first: it gets its turn between the pieces of the long one. */
static void test_takes_turns(void **state) {
    (void)state;
    struct scheduler *scheduler = open_scheduler(2, 4, 8192);
    char body[4000] = "{\"max_tokens\":1,\"prompt\":\"";
    size_t size = strlen(body);
    memset(body + size, 'a', 3000);
    strcpy(body + size + 3000, "\"}");
    struct job *lengthy = new_job(scheduler, body);
    struct job *brief = new_job(scheduler, "{\"prompt\":\"b\",\"max_tokens\":1}");
    submit(scheduler, lengthy);
    submit(scheduler, brief);
    wait_answered(brief);
    assert_false(answered(lengthy));
    job_cancel(lengthy);
    wait_dropped(lengthy, 100);
    job_release(brief);
    job_release(lengthy);
    scheduler_stop(scheduler);
    scheduler_close(scheduler);
}

static void test_queue_is_bounded(void **state) {
    (void)state;
    struct scheduler *scheduler = open_scheduler(1, 2, 16384);
    struct job *jobs[3], *extra;
    struct refusal refusal = {0};
    struct scheduler_view view;
    for (size_t i = 0; i < 3; i++) {
        jobs[i] = new_job(scheduler, "{" ENDLESS "\"prompt\":\"x\",\"max_tokens\":16000}");
        submit(scheduler, jobs[i]);
        if (i == 0)
            do {
                nap();
                scheduler_look(scheduler, &view);
            } while (view.active == 0);
    }
    extra = new_job(scheduler, "{\"prompt\":\"x\"}");
    assert_false(scheduler_has_room(scheduler, &refusal));
    assert_false(scheduler_submit(scheduler, extra, &refusal));
    assert_int_equal(refusal.status, 503);
    assert_string_equal(refusal.code, "queue_full");
    assert_int_equal(atomic_load(&extra->holders), 1);
    scheduler_look(scheduler, &view);
    assert_int_equal(view.active, 1);
    assert_int_equal(view.waiting, 2);
    /* Who leaves while waiting makes room, whoever stands before. */
    job_cancel(jobs[2]);
    wait_dropped(jobs[2], 5);
    assert_true(scheduler_submit(scheduler, extra, &refusal));
    /* The first one leaves while it is answered; the next takes its session. */
    job_cancel(jobs[0]);
    wait_dropped(jobs[0], 5);
    assert_string_equal(jobs[0]->numbers.finish, "cancelled");
    do {
        nap();
        scheduler_look(scheduler, &view);
    } while (view.active == 0);
    /* At the end all are told. */
    scheduler_stop(scheduler);
    assert_true(answered(jobs[1]) && answered(extra));
    assert_int_equal(jobs[1]->status, 503);
    assert_non_null(strstr(extra->output.data, "shutting down"));
    assert_false(scheduler_submit(scheduler, extra, &refusal));
    assert_string_equal(refusal.code, "shutting_down");
    for (size_t i = 0; i < 3; i++)
        job_release(jobs[i]);
    job_release(extra);
    scheduler_close(scheduler);
}

/* A prompt that continues what some session has read goes on from there. */
static void test_continues(void **state) {
    (void)state;
    struct scheduler *scheduler = open_scheduler(2, 4, 512);
    const char *const prompts[] = {
        "{\"prompt\":\"aaaaaaaaaa\",\"max_tokens\":1}", "{\"prompt\":\"bbbbbbbbbb\",\"max_tokens\":1}",
        "{\"prompt\":\"aaaaaaaaaaccc\",\"max_tokens\":1}", "{\"prompt\":\"bbbbbbbbbbd\",\"max_tokens\":1}"};
    const size_t computed[] = {10, 10, 3, 1};
    for (size_t i = 0; i < 4; i++) {
        struct job *job = new_job(scheduler, prompts[i]);
        submit(scheduler, job);
        wait_answered(job);
        wait_dropped(job, 10);
        assert_int_equal(job->numbers.computed_tokens, computed[i]);
        job_release(job);
    }
    scheduler_stop(scheduler);
    scheduler_close(scheduler);
}

/* Eight at once with a common beginning: it is computed once, whoever comes first. */
static void test_shares(void **state) {
    (void)state;
    struct scheduler *scheduler = open_scheduler(4, 16, 4096);
    struct job *jobs[8];
    size_t computed = 0;
    char body[2200] = "{\"max_tokens\":3,\"prompt\":\"";
    size_t begin = strlen(body);
    for (size_t i = 0; i < 2000; i++)
        body[begin + i] = (char)('a' + i * i % 23);
    for (size_t i = 0; i < 8; i++) {
        snprintf(body + begin + 2000, 100, "%zu%zu asks for something else\"}", i, i * 7);
        jobs[i] = new_job(scheduler, body);
    }
    for (size_t i = 0; i < 8; i++)
        submit(scheduler, jobs[i]);
    for (size_t i = 0; i < 8; i++) {
        wait_answered(jobs[i]);
        wait_dropped(jobs[i], 100);
        assert_int_equal(jobs[i]->status, 200);
        assert_in_range(jobs[i]->numbers.prompt_tokens, 2020, 2040);
        computed += jobs[i]->numbers.computed_tokens;
        job_release(jobs[i]);
    }
    assert_in_range(computed, 2000, 2000 + 8 * 60);
    scheduler_stop(scheduler);
    scheduler_close(scheduler);
}

static void test_loading_fails(void **state) {
    (void)state;
    struct calla_error error = {0};
    struct refusal refusal = {0};
    struct scheduler_view view;
    struct scheduler_options options = {.model = {.path = "/no/such/model"}, .queue = 1};
    struct scheduler *scheduler = scheduler_open(&options, &silent, &error);
    assert_non_null(scheduler);
    do {
        nap();
        scheduler_look(scheduler, &view);
    } while (view.state == SCHEDULER_LOADING);
    assert_int_equal(view.state, SCHEDULER_FAILED);
    assert_non_null(strstr(scheduler_failure(scheduler)->message, "/no/such/model"));
    assert_null(scheduler_model(scheduler));
    assert_false(scheduler_has_room(scheduler, &refusal));
    scheduler_stop(scheduler);
    scheduler_close(scheduler);
}

static int set_up(void **state) {
    (void)state;
    if (!checkpoint_fixture_make(&fixture, 7))
        return -1;
    /* Longer texts than the fixture's 512 positions, so that a reply lasts. */
    struct buffer config = {0};
    struct calla_error error;
    char *path = scratch_path(fixture.model, "config.json");
    assert_true(file_read(path, 1 << 20, &config, &error));
    char *limit = strstr(config.data, "\"max_position_embeddings\"");
    assert_non_null(limit);
    limit = strstr(limit, "512");
    assert_non_null(limit);
    size_t before = (size_t)(limit - config.data);
    char longer[4096];
    assert_true(config.size + 8 < sizeof longer);
    snprintf(longer, sizeof longer, "%.*s16384%s", (int)before, config.data, limit + 3);
    scratch_write_text(fixture.model, "config.json", longer);
    buffer_free(&config);
    free(path);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    checkpoint_fixture_remove(&fixture);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),          cmocka_unit_test(test_takes_turns),
        cmocka_unit_test(test_queue_is_bounded), cmocka_unit_test(test_continues),
        cmocka_unit_test(test_shares),           cmocka_unit_test(test_loading_fails),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
