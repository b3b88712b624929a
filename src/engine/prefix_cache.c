#include "engine/prefix_cache.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/system.h"
#include "engine/key_search.h"

/* Two stops that are nearer than this are one: a chunk of a few rows costs nearly as much as one of many. */
#define LEAST_GAP 8
/* Of a long history that is read for the first time only the last turns get stops at their beginnings
 * whatever their length; those before them are as far apart as this. */
#define OLD_TURNS_GAP 512
/* A stop where two texts part is made up to so many tokens from one that is there anyway. */
#define PARTING_GAP 64
/* People try again with the end of a question changed: stops that far before it, where the text since the
 * stop before is at least RETRY_SHARE times as long, so that short questions are not read in many small
 * pieces. */
static const uint32_t retry_distances[RETRY_STOPS] = {256, 32};
#define RETRY_SHARE 4
/* More uses than this say nothing more about a snapshot's worth. */
#define MOST_USES 8
/* Of the stops within long texts few go into files. */
#define FILE_INTERVAL (8 * CACHE_INTERVAL)
#define CLOSE_SECONDS 10.0
/* The weights' digest is waited for so long when the model is opened: one that was written down takes less.
 */
#define SECONDS_AT_START 1.0
#define SECONDS_FOR_SMALL_MODELS 60.0

struct prefix_cache {
    struct calla_model *model;
    struct prefix_node root;
    struct prefix_node *newest, *oldest; /* of the nodes with snapshots in memory */
    struct snapshot_store *store;        /* NULL: none, or not yet */
    struct key_search *search;           /* whose end the store waits for; NULL: it does not */
    struct snapshot_store_options disk;
    char *folder; /* the disk's, on the heap */
    struct calla_session *readers;
    uint64_t clock, orders, changes;
    struct calla_cache_info info;
    uint32_t least_file; /* tokens that a file must save: one for each megabyte of state */
    int32_t turn_token, think_token, response_token;
};

/* Opens the store as soon as the model's key is known; until then snapshots that are to go into files wait.
 */
static bool open_store(struct prefix_cache *cache, double seconds, struct calla_error *error) {
    enum key_state state = key_search_look(cache->search, cache->model, seconds, error);
    if (state == KEY_SEARCHING)
        return true;
    key_search_end(cache->search);
    cache->search = NULL;
    if (state == KEY_FOUND)
        cache->store = snapshot_store_open(cache->model, &cache->disk, &cache->root, error);
    if (cache->store == NULL)
        return false;
    model_use_replies(cache->model, cache->disk.folder);
    return true;
}

static bool open_folder(struct prefix_cache *cache, const struct snapshot_store_options *disk,
                        struct calla_error *error) {
    cache->disk = *disk;
    cache->folder = strdup(disk->folder);
    cache->disk.folder = cache->folder;
    if (cache->folder == NULL)
        return error_memory(error, "a folder's name", strlen(disk->folder));
    double seconds = cache->model->weights.bytes <= KEY_AT_ONCE ? SECONDS_FOR_SMALL_MODELS : SECONDS_AT_START;
    cache->search = key_search_start(cache->model, cache->folder, error);
    return cache->search != NULL && open_store(cache, seconds, error);
}

struct prefix_cache *prefix_cache_open(struct calla_model *model, uint64_t memory,
                                       const struct snapshot_store_options *disk, struct calla_error *error) {
    struct prefix_cache *cache = calloc(1, sizeof *cache);
    if (cache == NULL) {
        error_memory(error, "the cache", sizeof *cache);
        return NULL;
    }
    cache->model = model;
    cache->info.memory_limit = memory;
    cache->turn_token = tokenizer_added(model->tokenizer, "<|im_start|>");
    cache->think_token = tokenizer_added(model->tokenizer, "<think>");
    cache->response_token = tokenizer_added(model->tokenizer, "<tool_response>");
    struct calla_model_info info;
    calla_model_info(model, &info);
    cache->least_file = (uint32_t)(info.session_bytes >> 20);
    if (disk->folder == NULL || open_folder(cache, disk, error))
        return cache;
    prefix_cache_close(cache);
    return NULL;
}

/* Snapshots in memory */

static void unlink_node(struct prefix_cache *cache, struct prefix_node *node) {
    *(node->newer == NULL ? &cache->newest : &node->newer->older) = node->older;
    *(node->older == NULL ? &cache->oldest : &node->older->newer) = node->newer;
    node->newer = node->older = NULL;
}

static void link_newest(struct prefix_cache *cache, struct prefix_node *node) {
    node->older = cache->newest;
    *(cache->newest == NULL ? &cache->oldest : &cache->newest->newer) = node;
    cache->newest = node;
}

static void update_bytes(struct prefix_cache *cache) {
    cache->info.memory = snapshots_bytes(cache->model) + cache->info.logits;
    if (cache->info.memory > cache->info.memory_peak)
        cache->info.memory_peak = cache->info.memory;
}

static void forget(struct prefix_cache *cache, struct prefix_node *node) {
    cache->info.logits -= snapshot_logits_bytes(node->snapshot);
    cache->info.snapshots--;
    snapshot_free(node->snapshot);
    node->snapshot = NULL;
    node->wanted = false;
    unlink_node(cache, node);
    update_bytes(cache);
    prefix_tree_prune(node);
}

void prefix_cache_close(struct prefix_cache *cache) {
    if (cache == NULL)
        return;
    double until = system_seconds() + CLOSE_SECONDS;
    while (prefix_cache_tend(cache) && system_seconds() < until)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    key_search_end(cache->search);
    snapshot_store_close(cache->store);
    while (cache->newest != NULL)
        forget(cache, cache->newest);
    prefix_tree_free(&cache->root);
    free(cache->folder);
    free(cache);
}

static uint32_t known_before(const struct prefix_node *node) {
    for (node = node->parent; node != NULL; node = node->parent)
        if (node->snapshot != NULL)
            return node->depth;
    return 0;
}

/* What a snapshot is worth: the tokens that would have to be computed again without it, less with the time
 * since it was of use, more where texts part, less where it lies within a single text of which more is known.
 */
static double worth(const struct prefix_cache *cache, const struct prefix_node *node) {
    double tokens = (double)(node->depth - known_before(node));
    double age = (double)(cache->clock - node->used + 1);
    double place = node->child == NULL ? 1 : node->child->sibling != NULL ? 2 : 0.5;
    double uses = node->uses < MOST_USES ? node->uses : MOST_USES;
    return tokens * (1 + uses) * place / age;
}

/* Makes room for a snapshot of the session by forgetting what is worth less than `own`. False, with nothing
 * lost that was worth more, if that is not enough. What others hold of it costs nothing, until they are
 * forgotten. */
static bool make_room(struct prefix_cache *cache, const struct calla_session *session, double own) {
    struct calla_model_info info;
    calla_model_info(session->model, &info);
    if (info.session_bytes + info.bytes_per_position * session->position > cache->info.memory_limit)
        return false; /* not even alone */
    update_bytes(cache);
    while (cache->info.memory + snapshot_cost(session) > cache->info.memory_limit) {
        struct prefix_node *least = NULL;
        double least_worth = own;
        for (struct prefix_node *node = cache->oldest; node != NULL; node = node->newer) {
            double found = worth(cache, node);
            if (!node->writing && found < least_worth) {
                least = node;
                least_worth = found;
            }
        }
        if (least == NULL)
            return false;
        forget(cache, least);
        cache->info.evicted++;
    }
    return true;
}

static void touch(struct prefix_cache *cache, struct prefix_node *node) {
    node->used = ++cache->clock;
    if (node->snapshot == NULL)
        return;
    unlink_node(cache, node);
    link_newest(cache, node);
}

/* Files */

/* The snapshot that this one's file can go on from: *pending if it is not in a file yet but will be. */
static struct stored_snapshot *find_parent(const struct prefix_node *node, bool *pending) {
    uint64_t origin = node->snapshot->origin;
    *pending = false;
    for (const struct prefix_node *above = node->parent; above != NULL && origin != 0;
         above = above->parent) {
        if (above->stored != NULL && above->stored->id == origin)
            return above->stored;
        if (above->snapshot != NULL && above->snapshot->id == origin)
            *pending = above->wanted || above->writing;
    }
    return NULL;
}

/* Has those written that are to be, parents before children. */
static void offer_wanted(struct prefix_cache *cache) {
    for (struct prefix_node *node = cache->oldest; node != NULL; node = node->newer) {
        bool pending;
        if (!node->wanted || !snapshot_store_ready(cache->store))
            continue;
        struct stored_snapshot *parent = find_parent(node, &pending);
        if (pending)
            continue;
        snapshot_store_offer(cache->store, node, parent);
        node->wanted = false;
    }
}

static bool any_wanted(const struct prefix_cache *cache) {
    const struct prefix_node *node = cache->oldest;
    while (node != NULL && !node->wanted)
        node = node->newer;
    return node != NULL;
}

bool prefix_cache_tend(struct prefix_cache *cache) {
    struct calla_error error = {0};
    if (cache->search != NULL && !open_store(cache, 0, &error) && cache->disk.say != NULL)
        cache->disk.say(cache->disk.user, error.message);
    if (cache->store == NULL)
        return cache->search != NULL && any_wanted(cache);
    snapshot_store_collect(cache->store);
    offer_wanted(cache);
    return !snapshot_store_idle(cache->store);
}

/* Whether what a file would save is worth its writing. */
static void want_file(struct prefix_cache *cache, struct prefix_node *node, struct calla_session *session,
                      bool minor) {
    if (cache->store == NULL && cache->search == NULL)
        return;
    uint32_t base = 0;
    for (const struct prefix_node *above = node->parent; above != NULL && base == 0; above = above->parent)
        if (above->stored != NULL || above->wanted || above->writing)
            base = above->depth;
    if (node->stored != NULL || node->depth - base < (minor ? FILE_INTERVAL : cache->least_file))
        return;
    node->wanted = true;
    session->origin = node->snapshot->id;
    node->snapshot->meant_for_file = true;
    prefix_cache_tend(cache);
}

/* `minor`: of the many stops within a text, of which few go into files. */
static void keep(struct prefix_cache *cache, struct calla_session *session, bool minor) {
    uint32_t position = session->position;
    size_t common;
    if (position == 0 || session->chunk > 0)
        return;
    struct prefix_node *node = prefix_tree_find(&cache->root, session->tokens, position, &common);
    if (node->depth == position && node->snapshot != NULL) {
        if (node->snapshot->logits != NULL || !session->have_logits) {
            touch(cache, node);
            return;
        }
        if (node->writing)
            return;
        forget(cache, node); /* the same with logits takes its place */
        node = prefix_tree_find(&cache->root, session->tokens, position, &common);
    }
    uint32_t known = node->snapshot != NULL ? node->depth : known_before(node);
    if (position - known < LEAST_GAP || !make_room(cache, session, (double)(position - known)))
        return;
    node = prefix_tree_insert(&cache->root, session->tokens, position);
    if (node == NULL)
        return;
    node->snapshot = snapshot_take(session, NULL);
    if (node->snapshot == NULL) {
        prefix_tree_prune(node);
        return;
    }
    cache->info.logits += snapshot_logits_bytes(node->snapshot);
    cache->info.snapshots++;
    cache->info.taken++;
    cache->changes++;
    node->used = ++cache->clock;
    link_newest(cache, node);
    update_bytes(cache);
    want_file(cache, node, session, minor);
}

void prefix_cache_keep(struct prefix_cache *cache, struct calla_session *session) {
    keep(cache, session, false);
}

static bool in_memory(const struct prefix_node *node, size_t count) {
    return node->snapshot != NULL && (node->depth < count || node->snapshot->logits != NULL);
}

/* The deepest snapshot on the way to `node` that a text of `count` tokens can begin with. Right at its end
 * only one with logits serves. */
static struct prefix_node *usable(struct prefix_node *node, size_t count) {
    for (; node != NULL; node = node->parent)
        if (in_memory(node, count) ||
            (node->stored != NULL && (node->depth < count || node->stored->has_logits)))
            return node;
    return NULL;
}

/* From a file. What cannot be read is not there any more; the session is cleared then. */
static bool load(struct prefix_cache *cache, struct prefix_node *node, struct calla_session *session,
                 const int32_t *tokens) {
    uint64_t id = node->stored->id;
    if (!session_clear(session, NULL) || !snapshot_store_load(cache->store, node->stored, session, tokens)) {
        session_clear(session, NULL);
        return false;
    }
    session->origin = id;
    keep(cache, session, false);
    return true;
}

/* Brings the session to what is known of the tokens beyond the first `own`; false if it is cleared instead.
 */
static bool resume(struct prefix_cache *cache, struct calla_session *session, const int32_t *tokens,
                   size_t count, size_t own, size_t *common) {
    for (;;) {
        struct prefix_node *node = usable(prefix_tree_find(&cache->root, tokens, count, common), count);
        if (node == NULL || node->depth <= own || node->depth > session->context)
            return true;
        touch(cache, node);
        node->uses++;
        if (in_memory(node, count))
            return snapshot_restore(node->snapshot, session, tokens, NULL);
        if (load(cache, node, session, tokens))
            return true;
        own = 0;
    }
}

/* Stops */

static bool add_stop(struct reading *reading, uint32_t stop) {
    if (reading->stop_count == reading->stop_capacity) {
        size_t capacity = reading->stop_capacity * 2 + 16;
        uint32_t *stops = realloc(reading->stops, capacity * sizeof *stops);
        if (stops == NULL)
            return false;
        reading->stops = stops;
        reading->stop_capacity = capacity;
    }
    size_t place = reading->stop_count;
    for (; place > 0 && reading->stops[place - 1] >= stop; place--)
        if (reading->stops[place - 1] == stop)
            return true;
    memmove(reading->stops + place + 1, reading->stops + place,
            (reading->stop_count - place) * sizeof *reading->stops);
    reading->stops[place] = stop;
    reading->stop_count++;
    return true;
}

/* Whether a control token stands right behind the opening of a turn. */
static bool turn_opens_with(const struct reading *reading, size_t turn, int32_t token) {
    for (size_t i = turn; token >= 0 && i < reading->count && i < turn + 8; i++)
        if (reading->tokens[i] == token)
            return true;
    return false;
}

/* The last turns: where the reply will begin, where the question before it does, and where the turn before
 * that. */
struct last_turns {
    size_t reply, question, before;
};

static struct last_turns find_last_turns(const struct reading *reading, int32_t turn_token) {
    struct last_turns last = {0};
    for (size_t i = 1; i < reading->count; i++)
        if (reading->tokens[i] == turn_token)
            last = (struct last_turns){.reply = i, .question = last.reply, .before = last.question};
    return last;
}

/* The next request may repeat the question and show the reply to it without its thoughts, so that both part
 * where the reply begins. Not so while tools are called, or in a conversation that keeps all thoughts: there
 * the reply comes back as it was made. */
static bool reply_may_change(const struct prefix_cache *cache, const struct reading *reading,
                             struct last_turns last) {
    return !turn_opens_with(reading, last.question, cache->response_token) &&
           !(last.before > 0 && turn_opens_with(reading, last.before, cache->think_token));
}

/* Where the text ends that its author may still change. */
static uint32_t question_end(const struct reading *reading, struct last_turns last) {
    return (uint32_t)(last.reply > 0 ? last.reply : reading->count);
}

static void add_retry_stops(struct reading *reading, uint32_t end) {
    uint32_t previous = reading->last_stop;
    for (size_t i = 0; i < reading->stop_count && reading->stops[i] < end; i++)
        previous = reading->stops[i];
    for (size_t i = 0; i < RETRY_STOPS; i++) {
        bool far = end >= previous + RETRY_SHARE * retry_distances[i];
        reading->retry_stops[i] =
            far && add_stop(reading, end - retry_distances[i]) ? end - retry_distances[i] : 0;
    }
}

static void choose_stops(const struct prefix_cache *cache, struct reading *reading, size_t common) {
    struct last_turns last = find_last_turns(reading, cache->turn_token);
    uint32_t previous = reading->last_stop;
    reading->stop_count = 0;
    bool first = true, ok = true;
    for (size_t i = 1; ok && i < reading->count; i++) {
        if (reading->tokens[i] != cache->turn_token)
            continue;
        bool wanted =
            first || i == last.question || (i == last.reply && reply_may_change(cache, reading, last));
        size_t gap = wanted ? LEAST_GAP : OLD_TURNS_GAP;
        first = false;
        if (i < previous + gap || (i == last.reply && !wanted))
            continue;
        previous = (uint32_t)i;
        ok = add_stop(reading, previous);
    }
    add_retry_stops(reading, question_end(reading, last));
    /* Where this text leaves those that are known, a third may leave too. */
    if (common < reading->last_stop + PARTING_GAP || common + PARTING_GAP > reading->count)
        return;
    for (size_t i = 0; i < reading->stop_count; i++)
        if (reading->stops[i] <= common && common < reading->stops[i] + PARTING_GAP)
            return;
    add_stop(reading, (uint32_t)common);
}

/* Positions between stops where the text gives none: whole chunks, where these are longer. */
static uint32_t interval_of(const struct calla_session *session) {
    return session->chunk_rows > CACHE_INTERVAL ? session->chunk_rows : CACHE_INTERVAL;
}

uint32_t prefix_cache_stop(const struct calla_session *session) {
    const struct reading *reading = &session->reading;
    uint32_t stop = (uint32_t)reading->count, next = reading->last_stop + interval_of(session);
    if (stop > next && next > session->position)
        stop = next;
    for (size_t i = 0; i < reading->stop_count; i++)
        if (reading->stops[i] > session->position)
            return reading->stops[i] < stop ? reading->stops[i] : stop;
    return stop;
}

void prefix_cache_stopped(struct prefix_cache *cache, struct calla_session *session) {
    struct reading *reading = &session->reading;
    bool stop = session->position == reading->count;
    bool interval = session->position == reading->last_stop + interval_of(session);
    for (size_t i = 0; i < reading->stop_count; i++)
        stop = stop || reading->stops[i] == session->position;
    if (!stop && !interval)
        return;
    bool retry = false;
    for (size_t i = 0; i < RETRY_STOPS; i++)
        retry = retry || reading->retry_stops[i] == session->position;
    keep(cache, session, !stop || retry);
    reading->last_stop = session->position;
}

/* Those that read at the same time */

static struct calla_session *reader_of(const struct prefix_cache *cache, uint64_t order) {
    struct calla_session *reader = cache->readers;
    while (reader != NULL && reader->reading.order != order)
        reader = reader->reading.next;
    return reader;
}

/* The last stop of the reader up to `common`, a new one if there is none near; 0 if it is past that place. */
static uint32_t stop_for(struct calla_session *reader, uint32_t common) {
    struct reading *reading = &reader->reading;
    uint32_t at = reader->position + reader->chunk, best = 0;
    for (size_t i = 0; i < reading->stop_count; i++)
        if (reading->stops[i] >= at && reading->stops[i] <= common)
            best = reading->stops[i];
    if (best > 0 && common - best < PARTING_GAP)
        return best;
    return common > at && add_stop(reading, common) ? common : best;
}

/* Looks for one that is reading the same and will still do so for a while. */
static void find_ahead(struct prefix_cache *cache, struct calla_session *session) {
    struct reading *own = &session->reading;
    uint32_t best = 0;
    own->awaited = 0;
    for (struct calla_session *reader = cache->readers; reader != NULL; reader = reader->reading.next) {
        const struct reading *other = &reader->reading;
        size_t common = 0, most = other->count < own->count ? other->count : own->count;
        if (other->order >= own->order)
            continue;
        while (common < most && other->tokens[common] == own->tokens[common])
            common++;
        if (common == own->count)
            common--; /* the last token must be read for its logits */
        if (common < session->position + PARTING_GAP || common <= best)
            continue;
        uint32_t stop = stop_for(reader, (uint32_t)common);
        if (stop < session->position + PARTING_GAP)
            continue;
        best = (uint32_t)common;
        own->awaited = other->order;
        own->awaited_at = stop;
    }
}

bool prefix_cache_waits(const struct prefix_cache *cache, const struct calla_session *session) {
    if (session->reading.awaited == 0)
        return false;
    const struct calla_session *ahead = reader_of(cache, session->reading.awaited);
    return ahead != NULL && ahead->position < session->reading.awaited_at;
}

bool prefix_cache_begin(struct prefix_cache *cache, struct calla_session *session, const int32_t *tokens,
                        size_t count, size_t own) {
    struct reading *reading = &session->reading;
    size_t common;
    prefix_cache_end(cache, session);
    prefix_cache_tend(cache);
    bool ok = resume(cache, session, tokens, count, own, &common);
    uint32_t position = ok && session->position >= own ? session->position : 0;
    cache->info.requests++;
    cache->info.hits += position > 0;
    reading->tokens = tokens;
    reading->count = count;
    reading->order = ++cache->orders;
    reading->last_stop = ok && (own > 0 || position > 0) ? session->position : 0;
    reading->changes = cache->changes;
    choose_stops(cache, reading, common);
    find_ahead(cache, session);
    reading->next = cache->readers;
    cache->readers = session;
    return ok;
}

void prefix_cache_catch_up(struct prefix_cache *cache, struct calla_session *session) {
    struct reading *reading = &session->reading;
    size_t common;
    if (reading->order == 0 || reading->changes == cache->changes || session->chunk > 0)
        return;
    reading->changes = cache->changes;
    uint32_t position = session->position;
    struct prefix_node *node = prefix_tree_find(&cache->root, reading->tokens, reading->count, &common);
    while (node != NULL && !in_memory(node, reading->count))
        node = node->parent;
    if (node == NULL || node->depth < position + PARTING_GAP || node->depth > session->context)
        return;
    touch(cache, node);
    node->uses++;
    snapshot_restore(node->snapshot, session, reading->tokens, NULL); /* or the session begins again */
    reading->last_stop = session->position;
}

void prefix_cache_end(struct prefix_cache *cache, struct calla_session *session) {
    if (session->reading.order == 0)
        return;
    struct calla_session **link = &cache->readers;
    while (*link != session)
        link = &(*link)->reading.next;
    *link = session->reading.next;
    session->reading.order = 0;
    session->reading.awaited = 0;
    session->reading.tokens = NULL;
}

void prefix_cache_info(const struct prefix_cache *cache, struct calla_cache_info *info) {
    *info = cache->info;
    if (cache->store == NULL)
        return;
    struct snapshot_store_info store;
    snapshot_store_info(cache->store, &store);
    info->disk_limit = store.limit;
    info->disk = store.bytes;
    info->files = store.files;
    info->written = store.written;
    info->loaded = store.loaded;
    info->failed = store.failed;
}
