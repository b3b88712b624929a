/* A snapshot of a session: all that is needed to go on from where the session stood, in any session of the
 * model. What it holds never changes. */
#ifndef CALLA_ENGINE_SNAPSHOTS_H
#define CALLA_ENGINE_SNAPSHOTS_H

#include "engine/engine.h"

struct snapshot {
    struct calla_model *model;
    struct device_snapshot *device;
    float *logits; /* [vocabulary] after the last token; NULL: the session had none */
    uint32_t position;
    uint64_t id;     /* no other snapshot has it */
    uint64_t origin; /* of the last snapshot meant for a file that the session's state came from or went
                        through; 0: none */
    bool meant_for_file;
};

/* Bytes that snapshot_take would add to snapshots_bytes now. */
uint64_t snapshot_cost(const struct calla_session *session);
/* Bytes that the model's snapshots take, what they share counted once; without logits. */
uint64_t snapshots_bytes(const struct calla_model *model);
uint64_t snapshot_logits_bytes(const struct snapshot *snapshot);

/* Of a session that has no chunk in work. */
struct snapshot *snapshot_take(struct calla_session *session, struct calla_error *error);
void snapshot_free(struct snapshot *snapshot);

/* Brings the session to the snapshot's place; `tokens` are the snapshot's. A failure leaves it cleared. */
bool snapshot_restore(const struct snapshot *snapshot, struct calla_session *session, const int32_t *tokens,
                      struct calla_error *error);

#endif
