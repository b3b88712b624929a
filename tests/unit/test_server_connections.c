/* Deadlines, leavers, and who makes way when there are too many. Time is an argument, so nothing waits here.
 */
#include "unit.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/system.h"
#include "server/connections.h"

#define MOST 8

struct pair {
    int server, client;
    struct connection *connection;
};

static const struct connection_limits limits = {.most = MOST,
                                                .header_seconds = 10,
                                                .idle_seconds = 60,
                                                .body_seconds = 10,
                                                .body_rate = 100,
                                                .silence = 5};

static struct connections *open_list(void) {
    struct calla_error error;
    struct connections *connections = connections_new(&limits, &error);
    assert_non_null(connections);
    return connections;
}

static void open_pair(struct connections *connections, struct pair *pair) {
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    *pair = (struct pair){ends[0], ends[1], connections_add(connections, ends[0])};
    assert_non_null(pair->connection);
}

static void close_pair(struct connections *connections, struct pair *pair) {
    connections_remove(connections, pair->connection);
    close(pair->server);
    close(pair->client);
}

/* What the client can read, zero-terminated. */
static const char *heard(const struct pair *pair, char text[1024]) {
    ssize_t size = recv(pair->client, text, 1023, MSG_DONTWAIT);
    text[size < 0 ? 0 : size] = 0;
    return text;
}

/* Whether the server's side was shut down, as the client sees it. */
static bool ended(const struct pair *pair) {
    char byte;
    return recv(pair->client, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

static struct job *new_job(void) {
    const char *rest;
    struct job *job = job_new(route_find("/v1/chat/completions", &rest), NULL, NULL);
    assert_non_null(job);
    return job;
}

static void test_deadlines(void **state) {
    (void)state;
    struct connections *connections = open_list();
    struct pair fresh, resting, receiving, trickling, waiting;
    struct job *job = new_job();
    open_pair(connections, &fresh);
    open_pair(connections, &resting);
    open_pair(connections, &receiving);
    open_pair(connections, &trickling);
    open_pair(connections, &waiting);
    connection_rests(connections, resting.connection);
    connection_receives(connections, receiving.connection, 100000);
    connection_receives(connections, trickling.connection, 1);
    connection_waits(connections, waiting.connection, job);
    double now = system_seconds();
    connections_watch(connections, now + 9);
    assert_false(ended(&fresh) || ended(&resting) || ended(&receiving) || ended(&waiting));
    connections_watch(connections, now + 11);
    assert_true(ended(&fresh));
    char text[1024];
    assert_memory_equal(heard(&receiving, text), "HTTP/1.1 408 ", 13); /* no byte for more than 10 s */
    assert_non_null(strstr(text, "\r\n\r\n{\"error\":{"));
    assert_memory_equal(heard(&trickling, text), "HTTP/1.1 408 ", 13);
    assert_true(ended(&receiving) && ended(&trickling));
    assert_true(connection_was_late(connections, receiving.connection));
    assert_false(connection_was_late(connections, fresh.connection));
    assert_false(ended(&resting) || ended(&waiting));
    connections_watch(connections, now + 61);
    assert_true(ended(&resting));
    connections_watch(connections, now + 100000);
    assert_false(ended(&waiting));
    assert_false(atomic_load(&job->cancelled));
    close_pair(connections, &fresh);
    close_pair(connections, &resting);
    close_pair(connections, &receiving);
    close_pair(connections, &trickling);
    close_pair(connections, &waiting);
    assert_int_equal(atomic_load(&job->holders), 1);
    job_release(job);
    assert_int_equal(connections_count(connections), 0);
    connections_free(connections);
}

/* A busy machine can leave unread for long what the client sent in time. */
static void test_unread_is_not_late(void **state) {
    (void)state;
    struct connections *connections = open_list();
    struct pair pairs[3];
    char byte;
    for (size_t i = 0; i < 3; i++) {
        open_pair(connections, &pairs[i]);
        assert_int_equal(send(pairs[i].client, "x", 1, 0), 1);
    }
    connection_rests(connections, pairs[1].connection);
    connection_receives(connections, pairs[2].connection, 1);
    double late = system_seconds() + 61;
    connections_watch(connections, late);
    for (size_t i = 0; i < 3; i++) {
        assert_false(ended(&pairs[i]));
        assert_int_equal(recv(pairs[i].server, &byte, 1, 0), 1);
    }
    connections_watch(connections, late);
    char text[1024];
    assert_memory_equal(heard(&pairs[2], text), "HTTP/1.1 408 ", 13);
    for (size_t i = 0; i < 3; i++) {
        assert_true(ended(&pairs[i]));
        close_pair(connections, &pairs[i]);
    }
    connections_free(connections);
}

/* One byte now and then is progress, but not enough of it. */
static void test_body_rate(void **state) {
    (void)state;
    struct connections *connections = open_list();
    struct pair pair;
    open_pair(connections, &pair);
    connection_receives(connections, pair.connection, 500);
    double now = system_seconds();
    connections_watch(connections, now + 9.9); /* at most `body_seconds` in silence */
    assert_false(ended(&pair));
    connection_receives(connections, pair.connection, 1);
    connections_watch(connections, system_seconds() + 9.9);
    assert_false(ended(&pair));
    close_pair(connections, &pair);
    connections_free(connections);
}

static void test_leavers(void **state) {
    (void)state;
    struct connections *connections = open_list();
    struct pair gone, half, stays;
    struct job *jobs[3] = {new_job(), new_job(), new_job()};
    open_pair(connections, &gone);
    open_pair(connections, &half);
    open_pair(connections, &stays);
    connection_waits(connections, gone.connection, jobs[0]);
    connection_waits(connections, half.connection, jobs[1]);
    connection_waits(connections, stays.connection, jobs[2]);
    assert_int_equal(connections_busy(connections), 3);
    /* Bytes of a next request that nobody has read yet do not hide that the client is gone. */
    assert_int_equal(write(gone.client, "GET", 3), 3);
    close(gone.client);
    gone.client = -1;
    shutdown(half.client, SHUT_WR);
    connections_watch(connections, system_seconds());
    assert_true(atomic_load(&jobs[0]->cancelled));
    assert_true(atomic_load(&jobs[1]->cancelled));
    assert_false(atomic_load(&jobs[2]->cancelled));
    assert_int_equal(connections_busy(connections), 1);
    close_pair(connections, &gone);
    close_pair(connections, &half);
    close_pair(connections, &stays);
    for (size_t i = 0; i < 3; i++)
        job_release(jobs[i]);
    connections_free(connections);
}

static void test_making_way(void **state) {
    (void)state;
    struct connections *connections = open_list();
    struct pair pairs[MOST], more[5];
    struct job *job = new_job();
    for (size_t i = 0; i < MOST; i++)
        open_pair(connections, &pairs[i]);
    for (size_t i = 4; i < MOST; i++)
        connection_waits(connections, pairs[i].connection, job);
    connection_receives(connections, pairs[0].connection, 1);
    connection_rests(connections, pairs[3].connection);
    open_pair(connections, &more[0]); /* the resting one goes first */
    assert_true(ended(&pairs[3]));
    connection_waits(connections, more[0].connection, job);
    open_pair(connections, &more[1]); /* then the oldest new one */
    assert_true(ended(&pairs[1]));
    assert_false(ended(&pairs[2]));
    connection_waits(connections, more[1].connection, job);
    open_pair(connections, &more[2]);
    assert_true(ended(&pairs[2]));
    connection_waits(connections, more[2].connection, job);
    open_pair(connections, &more[3]); /* then the one whose body is on its way */
    assert_true(ended(&pairs[0]));
    connection_waits(connections, more[3].connection, job);
    connection_rests(connections, pairs[4].connection);
    assert_int_equal(write(pairs[4].client, "GET", 3), 3); /* nobody has read that yet */
    open_pair(connections, &more[4]); /* nobody who waits for an answer goes: the newcomer does */
    assert_true(ended(&more[4]));
    assert_false(ended(&pairs[4]));
    assert_int_equal(connections_busy(connections), MOST - 1);
    assert_false(atomic_load(&job->cancelled));
    for (size_t i = 0; i < MOST; i++)
        close_pair(connections, &pairs[i]);
    for (size_t i = 0; i < 5; i++)
        close_pair(connections, &more[i]);
    job_release(job);
    connections_free(connections);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deadlines),  cmocka_unit_test(test_unread_is_not_late),
        cmocka_unit_test(test_body_rate),  cmocka_unit_test(test_leavers),
        cmocka_unit_test(test_making_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
