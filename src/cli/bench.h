/* What the files of `calla bench` share: what is asked for, and what was measured.
 *
 * A *figure* is one phase at one length: its repeats in seconds, what the plan says it must move and compute,
 * and the repeats of whatever it is compared with. A *round* measures the figures of one length once. */
#ifndef CALLA_CLI_BENCH_H
#define CALLA_CLI_BENCH_H

#include <jansson.h>
#include <stdio.h>

#include "backend/backend.h"
#include "base/buffer.h"
#include "calla.h"
#include "cli/bench_numbers.h"
#include "cli/model_flags.h"
#include "cli/terminal.h"
#include "model/config.h"
#include "model/weights.h"

enum bench_phase { BENCH_PREFILL, BENCH_DECODE };
#define BENCH_PHASES 2

/* Of a figure by the plan: bytes and FLOPs of all its tokens, and the sum over the ops of each one's least
 * time, 0 when the machine is not known. */
struct bench_cost {
    double bytes, flops, least_seconds;
};

struct bench_figure {
    enum bench_phase phase;
    uint32_t length;
    uint32_t tokens;              /* counted in the speed: the prompt's, or the decoded ones */
    bool filled;                  /* decode: the context was filled, not read */
    struct samples seconds, peer; /* peer's of the same rounds */
    struct samples memory; /* bytes a second that the memory gave beside the rounds; empty: not measured */
    struct bench_cost cost;
};

/* One other value of a policy, measured in turn with the value that is set. */
struct bench_ablation {
    const char *name;
    char value[32], alternative[32]; /* "n/a" and "" where there is nothing to compare */
    char reason[1024];               /* why not; "" otherwise */
    struct bench_figure *figures;    /* [figure_count of the bench]: `peer` is the alternative */
};

struct bench_peer; /* MLX-LM in a process of its own */

struct bench_peer_info {
    char version[32], library[32], device[64];
    double load_seconds;
    uint64_t peak_resident;
};

struct bench {
    /* What is asked for. */
    struct model_flags model;
    struct lengths lengths[BENCH_PHASES];
    uint64_t repeat, warm_up, tokens, seed;
    bool real_context;
    struct option_values ablate;
    bool default_lengths;
    const char *against, *json_path, *plot_path;
    double bandwidth, rate; /* bytes and FLOP a second, 0: not known */
    bool bandwidth_given;
    struct bandwidth_meter *meter; /* NULL: the bandwidth is given or not this machine's memory's */

    /* The model, from the headers of its files. */
    char *path;
    const struct backend_class *class;
    struct device_facts device;
    struct policy policy;
    struct config config;
    struct weights weights;
    bool have_weights;
    int32_t *prompt; /* as long as the longest length; every shorter one is its beginning */

    /* What was measured. */
    struct calla_model_info info;
    char *name; /* the model's */
    double ready_seconds;
    uint64_t peak_resident, peak_before_meter;
    struct bench_figure *figures;
    size_t figure_count;
    struct bench_ablation *ablations;
    size_t ablation_count;
    bool complete; /* neither an error nor Ctrl-C ended it */
    struct bench_peer *peer;
    struct bench_peer_info peer_info;
    struct progress_line line;
};

/* bench_cost.c: what the plan says. */

/* Reads the headers of the model's files. */
bool bench_cost_open(struct bench *bench, struct calla_error *error);

/* Of lengths that nobody asked for, leaves those that have room in the context. */
void bench_drop_lengths(struct bench *bench);

/* Whether the model and the memory have room for every length; the error names the first that has none. */
bool bench_check_lengths(const struct bench *bench, struct calla_error *error);

/* Positions that a session needs for a length. */
uint32_t bench_context(const struct bench *bench, uint32_t length);

/* The bandwidth that a figure is held against: the median beside its rounds, or else the bench's. */
double bench_bandwidth(const struct bench *bench, const struct bench_figure *figure);

/* Fills figure->cost for that bandwidth and the bench's rate. */
bool bench_cost_figure(const struct bench *bench, struct bench_figure *figure, struct calla_error *error);

/* bench_rounds.c: measuring. */

/* Figures for every length and phase, nothing measured yet. NULL when memory is short. */
struct bench_figure *bench_figures_new(const struct bench *bench, size_t *count, struct calla_error *error);

/* A contestant: one way to run the model. */
struct bench_contestant {
    struct model_flags flags;
    struct calla_model *model; /* NULL: not open */
};

bool bench_contestant_open(struct bench *bench, struct bench_contestant *contestant,
                           struct calla_error *error);
void bench_contestant_close(struct bench_contestant *contestant);

/* Measures all figures length by length; with a peer in turn with it. What was measured when an error or
 * Ctrl-C (CALLA_CANCELLED) ends it stays. */
bool bench_measure(struct bench *bench, struct calla_error *error);

/* bench_ablate.c */

/* Chooses what to compare; every name must be one of the backend's. */
bool bench_ablate_choose(struct bench *bench, struct calla_error *error);
bool bench_ablate(struct bench *bench, struct calla_error *error);

/* One round at a length with the session given; adds to the figures of that length unless `warm_up`.
 * `peer_side` adds to `peer` instead of `seconds`. */
bool bench_round(struct bench *bench, struct calla_model *model, struct calla_session *session,
                 uint32_t length, struct bench_figure *figures, bool warm_up, bool peer_side,
                 struct calla_error *error);

/* bench_peer.c */

/* Starts the other program far enough to know that it can run. */
bool bench_peer_open(struct bench *bench, struct calla_error *error);

/* Ends it. What it said of itself stays. */
void bench_peer_close(struct bench *bench);

/* Has it load the model. */
bool bench_peer_load(struct bench *bench, struct calla_error *error);

/* One round there: seconds of the prompt, and of the tokens after the first. */
bool bench_peer_round(struct bench *bench, uint32_t length, uint32_t tokens, double seconds[BENCH_PHASES],
                      struct calla_error *error);

/* bench_table.c, bench_report.c, bench_plot.c: the results for people, for programs and as a picture. */

void bench_print_table(const struct bench *bench);
json_t *bench_report(const struct bench *bench);
bool bench_plot(const struct bench *bench, struct buffer *out);

#endif
