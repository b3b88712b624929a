/* What the model's sessions have read, kept so that it is not read twice: snapshots at the places in a text
 * where another text may go on differently. A session that is to read something begins at the longest one
 * that it begins with, whoever made it.
 *
 * The places, called stops, are the ends of turns, every CACHE_INTERVAL tokens (or chunk, if that is more),
 * and wherever two texts were seen to part. All snapshots together stay within one budget, which is made
 * room in before one is taken; the least valuable go first. Used by the thread that owns the model. */
#ifndef CALLA_ENGINE_PREFIX_CACHE_H
#define CALLA_ENGINE_PREFIX_CACHE_H

#include "engine/snapshot_store.h"

#define CACHE_INTERVAL 1024

struct prefix_cache;

/* `disk` without a folder keeps nothing in files. */
struct prefix_cache *prefix_cache_open(struct calla_model *model, uint64_t memory,
                                       const struct snapshot_store_options *disk, struct calla_error *error);
/* When no session of the model is open. Waits some seconds for what is to be written. */
void prefix_cache_close(struct prefix_cache *cache);

/* The session begins to read these tokens, which stay where they are until it has ended: brings it to the
 * longest prefix that is known, if that is more than the first `own` tokens, which the session has read
 * already, and chooses its stops. False if the session's state was lost on the way: it is reset. */
bool prefix_cache_begin(struct prefix_cache *cache, struct calla_session *session, const int32_t *tokens,
                        size_t count, size_t own);
/* Between chunks: whether another session has got further with the same text; then this one is there too. */
void prefix_cache_catch_up(struct prefix_cache *cache, struct calla_session *session);
/* The position up to which the session may read before it must stop, beyond where it is. */
uint32_t prefix_cache_stop(const struct calla_session *session);
/* Reading has come to a position, which is kept if it is a stop, or has ended, however it ended. */
void prefix_cache_stopped(struct prefix_cache *cache, struct calla_session *session);
void prefix_cache_end(struct prefix_cache *cache, struct calla_session *session);

/* Whether another session is reading what this one would read next, and will come to a stop where both texts
 * are still the same: waiting for it saves computing the same twice. */
bool prefix_cache_waits(const struct prefix_cache *cache, const struct calla_session *session);

/* Goes on with what is done in the background: false when there is nothing left to do. */
bool prefix_cache_tend(struct prefix_cache *cache);

/* Keeps the session as it is, if it is worth the memory. */
void prefix_cache_keep(struct prefix_cache *cache, struct calla_session *session);

void prefix_cache_info(const struct prefix_cache *cache, struct calla_cache_info *info);

#endif
