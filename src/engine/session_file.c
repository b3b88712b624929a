/* Saving, loading and forking of sessions: snapshots that their caller keeps. */
#include <stdlib.h>

#include "base/system.h"
#include "engine/snapshot_file.h"

struct calla_session *calla_session_fork(struct calla_session *session, struct calla_error *error) {
    struct calla_session_options options = {.context = session->context};
    struct snapshot *snapshot = snapshot_take(session, error);
    struct calla_session *fork =
        snapshot == NULL ? NULL : calla_session_open(session->model, &options, error);
    bool ok = fork != NULL && snapshot_restore(snapshot, fork, session->tokens, error);
    snapshot_free(snapshot);
    if (ok)
        return fork;
    calla_session_close(fork);
    return NULL;
}

bool calla_session_save(struct calla_session *session, const char *path, struct calla_error *error) {
    if (session->position == 0)
        return error_set(error, CALLA_BAD_INPUT, "There is nothing to save: the session has read nothing.");
    struct snapshot *snapshot = snapshot_take(session, error);
    struct snapshot_writing writing = {
        .snapshot = snapshot, .tokens = session->tokens, .id = system_random() | 1};
    bool ok = snapshot != NULL && snapshot_file_write(path, &writing, NULL, error);
    snapshot_free(snapshot);
    return ok;
}

static bool load(const struct snapshot_file *file, struct calla_session *session, const int32_t *tokens,
                 struct calla_error *error) {
    uint32_t position = file->header.position;
    if (file->header.base > 0)
        return error_set(error, CALLA_BAD_INPUT, "%s is a part of a cache and cannot be loaded alone.",
                         file->file.path);
    if (!session_check_tokens(session, tokens, position, error) || !calla_session_reset(session, error))
        return false;
    if (!snapshot_file_read_kv(file, session, error) || !snapshot_file_read_state(file, session, error)) {
        calla_session_reset(session, NULL);
        return false;
    }
    session_stands(session, tokens, position, file->header.bytes[SECTION_LOGITS] > 0);
    return true;
}

bool calla_session_load(struct calla_session *session, const char *path, struct calla_error *error) {
    struct snapshot_file file;
    if (!snapshot_file_open(&file, path, session->model, error))
        return false;
    int32_t *tokens = snapshot_file_tokens(&file, error);
    bool ok = tokens != NULL && load(&file, session, tokens, error);
    free(tokens);
    snapshot_file_close(&file);
    return ok;
}
