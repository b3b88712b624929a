/* The sessions that requests are answered with: opened when they are needed, as many as memory allows. Which
 * one a request gets does not matter: what any of them has read is in the model's cache. Used by one thread.
 */
#ifndef CALLA_SERVER_SESSION_POOL_H
#define CALLA_SERVER_SESSION_POOL_H

#include "calla.h"

struct session_pool;

/* At most `sessions` of `context` positions each. A 0 leaves the choice to the memory: without a context it
 * is what one session may take by default, or with `sessions` named an equal share of that; without a number
 * of sessions they are at most 4 and fit into three quarters of what the weights leave. The first one is
 * opened here, so that a machine that is too small is found out at the start. */
struct session_pool *session_pool_open(struct calla_model *model, uint32_t sessions, uint32_t context,
                                       struct calla_error *error);
/* All sessions are given back. */
void session_pool_close(struct session_pool *pool);

uint32_t session_pool_context(const struct session_pool *pool);
uint32_t session_pool_count(const struct session_pool *pool); /* opened so far */
uint32_t session_pool_most(const struct session_pool *pool);

/* Sees to it that a session is free, opening one if all are taken. False when there are as many as may be, or
 * memory is short. */
bool session_pool_make_room(struct session_pool *pool);

/* A free session, which has read nothing. Follows a session_pool_make_room that was true. */
struct calla_session *session_pool_take(struct session_pool *pool);
void session_pool_give_back(struct session_pool *pool, struct calla_session *session);

#endif
