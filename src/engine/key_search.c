#include "engine/key_search.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/system.h"
#include "engine/snapshot_file.h"
#include "model/weights_digest.h"

struct key_search {
    const struct weights *weights;
    char *folder;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool cancelled;
    enum key_state state;
    unsigned char digest[WEIGHTS_DIGEST];
    struct calla_error error;
};

static bool go_on(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what, (void)done;
    struct key_search *search = user;
    if (total > KEY_AT_ONCE)
        system_give_way(); /* what was written down has been looked for, and the long reading begins */
    pthread_mutex_lock(&search->lock);
    bool cancelled = search->cancelled;
    pthread_mutex_unlock(&search->lock);
    return !cancelled;
}

static void *search_main(void *argument) {
    struct key_search *search = argument;
    struct calla_progress progress = {.report = go_on, .user = search};
    unsigned char digest[WEIGHTS_DIGEST] = {0};
    struct calla_error error = {0};
    bool found = weights_digest(search->weights, search->folder, &progress, digest, &error);
    pthread_mutex_lock(&search->lock);
    memcpy(search->digest, digest, sizeof digest);
    search->error = error;
    search->state = found ? KEY_FOUND : KEY_FAILED;
    pthread_cond_signal(&search->ended);
    pthread_mutex_unlock(&search->lock);
    return NULL;
}

struct key_search *key_search_start(const struct calla_model *model, const char *folder,
                                    struct calla_error *error) {
    struct key_search *search = calloc(1, sizeof *search);
    if (search == NULL || (search->folder = strdup(folder)) == NULL) {
        free(search);
        error_memory(error, "the search for the model's key", sizeof *search);
        return NULL;
    }
    search->weights = &model->weights;
    pthread_mutex_init(&search->lock, NULL);
    pthread_cond_init(&search->ended, NULL);
    if (pthread_create(&search->thread, NULL, search_main, search) == 0)
        return search;
    pthread_mutex_destroy(&search->lock);
    pthread_cond_destroy(&search->ended);
    free(search->folder);
    free(search);
    error_set(error, CALLA_OUT_OF_MEMORY, "A thread for the cache's folder could not be started.");
    return NULL;
}

enum key_state key_search_look(struct key_search *search, struct calla_model *model, double seconds,
                               struct calla_error *error) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)(seconds * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&search->lock);
    while (seconds > 0 && search->state == KEY_SEARCHING &&
           pthread_cond_timedwait(&search->ended, &search->lock, &until) == 0)
        ;
    enum key_state state = search->state;
    pthread_mutex_unlock(&search->lock);
    if (state == KEY_FAILED && error != NULL)
        *error = search->error;
    if (state == KEY_FOUND && !model_key_of(model, search->digest, error))
        state = KEY_FAILED;
    return state;
}

void key_search_end(struct key_search *search) {
    if (search == NULL)
        return;
    pthread_mutex_lock(&search->lock);
    search->cancelled = true;
    pthread_mutex_unlock(&search->lock);
    pthread_join(search->thread, NULL);
    pthread_mutex_destroy(&search->lock);
    pthread_cond_destroy(&search->ended);
    free(search->folder);
    free(search);
}
