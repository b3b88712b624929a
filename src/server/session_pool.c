#include "server/session_pool.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/error.h"
#include "server/scheduler.h"

struct place {
    struct calla_session *session;
    bool taken;
};

struct session_pool {
    struct calla_model *model;
    uint32_t context;
    atomic_uint most; /* falls when memory is too short for another one */
    uint32_t count, taken;
    struct place places[SCHEDULER_MOST_SESSIONS];
};

static uint64_t memory_left(const struct calla_model_info *info) {
    uint64_t memory = info->memory_bytes, taken = info->weight_bytes + info->cache_memory;
    return memory > taken ? memory - taken : 0;
}

/* The equal share of `sessions` in half of the memory that the weights leave. */
static uint32_t share_of_context(const struct calla_model_info *info, uint32_t sessions) {
    uint64_t left = memory_left(info) / 2 / sessions;
    uint64_t positions = left > info->session_bytes && info->bytes_per_position > 0
                             ? (left - info->session_bytes) / info->bytes_per_position
                             : 0;
    if (positions < 4096)
        positions = 4096;
    return positions < info->context_limit ? (uint32_t)positions : info->context_limit;
}

static uint32_t sessions_that_fit(const struct calla_model_info *info, uint32_t context) {
    uint64_t each = info->session_bytes + info->bytes_per_position * context;
    if (info->memory_bytes == 0 || each == 0)
        return SCHEDULER_SESSIONS;
    uint64_t fit = memory_left(info) / 4 * 3 / each;
    return fit < 1 ? 1 : fit < SCHEDULER_SESSIONS ? (uint32_t)fit : SCHEDULER_SESSIONS;
}

static struct calla_session *open_one(struct session_pool *pool, struct calla_error *error) {
    struct calla_session_options options = {.context = pool->context};
    struct calla_session *session = calla_session_open(pool->model, &options, error);
    if (session != NULL)
        pool->places[pool->count++].session = session;
    return session;
}

struct session_pool *session_pool_open(struct calla_model *model, uint32_t sessions, uint32_t context,
                                       struct calla_error *error) {
    struct session_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) {
        error_memory(error, "the sessions", sizeof *pool);
        return NULL;
    }
    struct calla_model_info info;
    calla_model_info(model, &info);
    pool->model = model;
    pool->context = context;
    if (context == 0 && sessions > 0 && info.memory_bytes > 0)
        pool->context = share_of_context(&info, sessions);
    struct calla_session *first = open_one(pool, error);
    if (first == NULL) {
        session_pool_close(pool);
        return NULL;
    }
    pool->context = calla_session_context(first);
    atomic_init(&pool->most, sessions > 0 ? sessions : sessions_that_fit(&info, pool->context));
    return pool;
}

void session_pool_close(struct session_pool *pool) {
    if (pool == NULL)
        return;
    for (uint32_t i = 0; i < pool->count; i++)
        calla_session_close(pool->places[i].session);
    free(pool);
}

uint32_t session_pool_context(const struct session_pool *pool) {
    return pool->context;
}

uint32_t session_pool_count(const struct session_pool *pool) {
    return pool->count;
}

uint32_t session_pool_most(const struct session_pool *pool) {
    return atomic_load(&pool->most);
}

/* What is too much now is not tried again. */
static bool open_another(struct session_pool *pool) {
    if (pool->count >= session_pool_most(pool))
        return false;
    struct calla_error error;
    if (open_one(pool, &error) != NULL)
        return true;
    atomic_store(&pool->most, pool->count);
    return false;
}

bool session_pool_make_room(struct session_pool *pool) {
    return pool->taken < pool->count || open_another(pool);
}

struct calla_session *session_pool_take(struct session_pool *pool) {
    struct place *place = pool->places;
    while (place->taken)
        place++;
    place->taken = true;
    pool->taken++;
    return place->session;
}

void session_pool_give_back(struct session_pool *pool, struct calla_session *session) {
    for (uint32_t i = 0; i < pool->count; i++) {
        if (pool->places[i].session != session)
            continue;
        /* What it has read is in the cache, and its memory is free for others. */
        struct calla_cache_info cache;
        calla_cache_info(pool->model, &cache);
        if (cache.memory_limit > 0)
            calla_session_reset(session, NULL);
        pool->places[i].taken = false;
        pool->taken--;
    }
}
