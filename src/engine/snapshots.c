#include "engine/snapshots.h"

#include <stdlib.h>
#include <string.h>

#include "base/system.h"

static uint64_t logits_bytes(const struct calla_model *model) {
    return (uint64_t)model->config.vocabulary * sizeof(float);
}

uint64_t snapshot_cost(const struct calla_session *session) {
    return session->model->class->snapshot_cost(session->device, session->position) +
           (session->have_logits ? logits_bytes(session->model) : 0);
}

uint64_t snapshots_bytes(const struct calla_model *model) {
    return model->class->snapshot_bytes(model->backend);
}

uint64_t snapshot_logits_bytes(const struct snapshot *snapshot) {
    return snapshot->logits == NULL ? 0 : logits_bytes(snapshot->model);
}

struct snapshot *snapshot_take(struct calla_session *session, struct calla_error *error) {
    const struct backend_class *class = session->model->class;
    uint64_t bytes = logits_bytes(session->model);
    if (session->chunk > 0) {
        error_set(error, CALLA_BAD_INPUT, "A session cannot be kept in the middle of a chunk.");
        return NULL;
    }
    if (class->snapshot_take == NULL) {
        error_set(error, CALLA_UNSUPPORTED, "The backend %s cannot keep sessions.", class->name);
        return NULL;
    }
    struct snapshot *snapshot = calloc(1, sizeof *snapshot);
    if (snapshot == NULL) {
        error_memory(error, "a snapshot", sizeof *snapshot);
        return NULL;
    }
    snapshot->model = session->model;
    snapshot->position = session->position;
    snapshot->id = system_random() | 1;
    snapshot->origin = session->origin;
    bool ok = true;
    if (session->have_logits) {
        snapshot->logits = malloc((size_t)bytes);
        ok = snapshot->logits == NULL
                 ? error_memory(error, "a snapshot", (size_t)bytes)
                 : class->read(session->device, SPACE_STEP, STEP_LOGITS, 0, snapshot->logits, bytes, error);
    }
    if (ok && (snapshot->device = class->snapshot_take(session->device, session->position, error)) != NULL)
        return snapshot;
    snapshot_free(snapshot);
    return NULL;
}

void snapshot_free(struct snapshot *snapshot) {
    if (snapshot == NULL)
        return;
    snapshot->model->class->snapshot_free(snapshot->device);
    free(snapshot->logits);
    free(snapshot);
}

bool snapshot_restore(const struct snapshot *snapshot, struct calla_session *session, const int32_t *tokens,
                      struct calla_error *error) {
    const struct backend_class *class = session->model->class;
    if (snapshot->position > session->context)
        return error_set(error, CALLA_CONTEXT_FULL,
                         "The snapshot of %u tokens does not fit a context of %u tokens.", snapshot->position,
                         session->context);
    bool ok =
        class->snapshot_restore(session->device, snapshot->device, error) &&
        (snapshot->logits == NULL || class->write(session->device, SPACE_STEP, STEP_LOGITS, 0,
                                                  snapshot->logits, logits_bytes(session->model), error));
    if (!ok) {
        session_clear(session, NULL);
        return false;
    }
    session_stands(session, tokens, snapshot->position, snapshot->logits != NULL);
    session->origin = snapshot->meant_for_file ? snapshot->id : snapshot->origin;
    return true;
}
