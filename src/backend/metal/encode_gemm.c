/* Matrix products of many rows. */
#include "backend/metal/encode_gemm.h"

/* Bytes of expanded weights at a time, where the policy wants weights expanded. */
#define EXPANDED_BYTES (64u << 20)

/* Function constants of kernels/gemm.h. */
enum gemm_constant { CONSTANT_GROUPED = 120, CONSTANT_GATE_UP };

bool gemm_fits(const struct metal_operand *x) {
    return x->rows > FEW_ROWS && x->columns % TENSOR_DEPTH == 0;
}

static bool is_precise(const struct metal_operand *matrix) {
    return matrix != NULL && (matrix->dtype == DTYPE_F32 || matrix->dtype == DTYPE_F16);
}

enum dtype gemm_dtype(const struct metal_operand *matrix, const struct metal_operand *up) {
    return is_precise(matrix) || is_precise(up) ? DTYPE_F32 : DTYPE_BF16;
}

/* ---- x */

void encode_prepare(const struct metal_operand *x, const struct metal_operand *norm, float epsilon,
                    const struct metal_operand *prepared, struct metal_encoder *encoder) {
    const struct metal_constant normalise = metal_bool(CONSTANT_NORMALISE, norm != NULL);
    const struct prepare_parameters given = {x->columns, x->stride, epsilon};
    metal_use(encoder, prepared->dtype == DTYPE_BF16 ? "prepare_rows_bfloat" : "prepare_rows_float",
              &normalise, 1);
    metal_bind_bytes(encoder, 0, &given, sizeof given);
    metal_bind(encoder, 1, x);
    metal_bind(encoder, 2, norm != NULL ? norm : x);
    metal_bind_output(encoder, 3, prepared);
    metal_launch(encoder, (struct metal_size){x->rows, 1, 1},
                 (struct metal_size){METAL_SIMD_WIDTH * simdgroups_of(encoder, 8), 1, 1});
}

/* ---- Tiles of rows */

struct gemm_groups gemm_groups_place(struct workspace_places *places, const struct metal_encoder *encoder,
                                     const struct metal_operand *starts, const struct metal_operand *order) {
    struct gemm_groups groups = {.starts = starts,
                                 .order = order,
                                 .tile_rows = metal_policy(encoder)->expert_tile,
                                 .experts = starts->columns - 1,
                                 .pairs_of_row = 1};
    /* Every expert may have a tile that is not full. */
    uint32_t most = order->columns / groups.tile_rows + groups.experts;
    groups.tiles = workspace_place(places, DTYPE_U32, most, sizeof(struct expert_tile) / sizeof(uint32_t));
    groups.counts = workspace_place(places, DTYPE_U32, 1, 3);
    return groups;
}

static bool uses_tensors(const struct metal_operand *x, const struct metal_encoder *encoder) {
    return metal_tensors(encoder) && x->dtype == DTYPE_BF16;
}

/* Columns of y in a tile. With simdgroup matrices, gate and up share the columns of one. */
static uint32_t tile_columns(const struct metal_operand *x, bool gate_up,
                             const struct metal_encoder *encoder) {
    return gate_up && !uses_tensors(x, encoder) ? GEMM_COLUMNS / 2 : GEMM_COLUMNS;
}

void encode_expert_tiles(const struct gemm_groups *groups, const struct metal_operand *x, uint32_t out,
                         bool gate_up, struct metal_encoder *encoder) {
    const struct expert_tiles_parameters given = {groups->experts, groups->tile_rows,
                                                  divide_up(out, tile_columns(x, gate_up, encoder))};
    metal_use(encoder, "expert_tiles", NULL, 0);
    metal_bind_bytes(encoder, 0, &given, sizeof given);
    metal_bind(encoder, 1, groups->starts);
    metal_bind_part(encoder, 2, &groups->tiles, 0, (uint64_t)groups->tiles.rows * sizeof(struct expert_tile),
                    ACCESS_WRITE);
    metal_bind_output(encoder, 3, &groups->counts);
    metal_launch(encoder, (struct metal_size){groups->experts + 1, 1, 1},
                 (struct metal_size){METAL_SIMD_WIDTH, 1, 1});
}

/* ---- The product */

struct gemm_kernel {
    const char *name;
    uint32_t rows; /* of a tile */
};

static struct gemm_kernel gemm_kernel(const struct gemm *gemm, const struct metal_encoder *encoder) {
    static const struct gemm_kernel kernels[][3] = {
        {{"gemm_16", 16}, {"gemm_32", 32}, {"gemm_64", 64}},
        {{"tensor_gemm_16", 16}, {"tensor_gemm_32", 32}, {"tensor_gemm_64", 64}},
        {{"tensor_gate_up_16", 16}, {"tensor_gate_up_32", 32}},
        {{"gemm_float_16", 16}, {"gemm_float_32", 32}}};
    bool precise = gemm->x->dtype == DTYPE_F32;
    const struct gemm_kernel *kind = kernels[precise                           ? 3
                                             : !uses_tensors(gemm->x, encoder) ? 0
                                             : gemm->up == NULL                ? 1
                                                                               : 2];
    if (gemm->groups != NULL)
        return kind[gemm->groups->tile_rows / 32];
    return kind[gemm->x->rows > 32 && gemm->up == NULL && !precise ? 2 : 1];
}

/* With all of W and U, or those of `experts` experts from first_expert on. */
static void launch_gemm(const struct gemm *gemm, uint32_t first_expert, uint32_t experts,
                        struct metal_encoder *encoder) {
    const struct gemm_groups *groups = gemm->groups;
    bool gate_up = gemm->up != NULL;
    const struct metal_operand *y = gemm->y;
    const struct metal_constant constants[] = {
        metal_uint(CONSTANT_KIND_A, weight_kind(gemm->matrix)),
        metal_uint(CONSTANT_KIND_B, weight_kind(gate_up ? gemm->up : gemm->matrix)),
        metal_bool(CONSTANT_GROUPED, groups != NULL), metal_bool(CONSTANT_GATE_UP, gate_up),
        metal_bool(CONSTANT_ACCUMULATE, gemm->accumulate)};
    const struct gemm_kernel kernel = gemm_kernel(gemm, encoder);
    const struct gemm_parameters given = {.rows = groups != NULL ? groups->order->columns : gemm->x->rows,
                                          .columns = gemm->x->columns,
                                          .out = y->columns,
                                          .first_out = gemm->first_out,
                                          .expert_rows = experts > 0 ? gemm->matrix->rows / experts : 0,
                                          .y_stride = y->stride,
                                          .pairs_of_row = groups != NULL ? groups->pairs_of_row : 1,
                                          .first_expert = first_expert,
                                          .experts = experts};
    metal_use(encoder, kernel.name, constants, sizeof constants / sizeof *constants);
    metal_bind_bytes(encoder, 0, &given, sizeof given);
    struct metal_operand x = *gemm->x;
    x.access = ACCESS_READ;
    metal_bind(encoder, 1, &x);
    bind_weight(encoder, 2, gemm->matrix);
    if (gate_up)
        bind_weight(encoder, 5, gemm->up);
    if (gemm->accumulate || (groups != NULL && experts < groups->experts))
        metal_bind(encoder, 8, y);
    else
        metal_bind_output(encoder, 8, y);
    const struct metal_size threads = {GEMM_THREADS, 1, 1};
    if (groups == NULL) {
        metal_launch(encoder,
                     (struct metal_size){divide_up(y->columns, tile_columns(&x, gate_up, encoder)),
                                         divide_up(x.rows, kernel.rows), 1},
                     threads);
        return;
    }
    struct metal_operand tiles = groups->tiles;
    tiles.access = ACCESS_READ;
    metal_bind(encoder, 9, &tiles);
    metal_bind(encoder, 10, groups->order);
    metal_launch_indirect(encoder, &groups->counts, 0, threads);
}

/* ---- Weights that are expanded first */

static bool expands(const struct metal_operand *matrix, const struct metal_operand *up,
                    const struct metal_encoder *encoder) {
    bool are_bfloats = matrix->dtype == DTYPE_BF16 && (up == NULL || up->dtype == DTYPE_BF16);
    return !metal_policy(encoder)->dequant_in_gemm && !are_bfloats && gemm_dtype(matrix, up) == DTYPE_BF16;
}

/* Rows of W that are expanded at a time: whole experts where `experts` is not 0. */
static uint32_t slab_rows(const struct metal_operand *matrix, bool gate_up, uint32_t experts) {
    uint64_t row_bytes = (uint64_t)matrix->columns * 2 * (gate_up ? 2 : 1);
    uint32_t unit = experts > 0 ? matrix->rows / experts : GEMM_COLUMNS;
    uint64_t units = EXPANDED_BYTES / (row_bytes * unit);
    uint64_t rows = (units > 0 ? units : 1) * unit;
    return rows < matrix->rows ? (uint32_t)rows : matrix->rows;
}

struct metal_operand expanded_place(struct workspace_places *places, const struct metal_encoder *encoder,
                                    const struct metal_operand *matrix, const struct metal_operand *up,
                                    uint32_t experts) {
    if (!expands(matrix, up, encoder))
        return (struct metal_operand){.rows = 0};
    uint32_t rows = slab_rows(matrix, up != NULL, experts);
    return workspace_place(places, DTYPE_BF16, up != NULL ? 2 * rows : rows, matrix->columns);
}

/* Rows first .. first + expanded->rows - 1 of a matrix. */
static void encode_expand(const struct metal_operand *matrix, uint32_t first,
                          const struct metal_operand *expanded, struct metal_encoder *encoder) {
    const struct metal_constant kind = metal_uint(CONSTANT_KIND_A, weight_kind(matrix));
    uint32_t row_pieces = matrix->columns / 16;
    const struct expand_parameters given = {(uint64_t)first * row_pieces, expanded->rows * row_pieces};
    metal_use(encoder, "expand_weights", &kind, 1);
    metal_bind_bytes(encoder, 0, &given, sizeof given);
    bind_weight(encoder, 1, matrix);
    metal_bind_output(encoder, 4, expanded);
    metal_launch(encoder, (struct metal_size){divide_up(given.pieces, GEMM_THREADS), 1, 1},
                 (struct metal_size){GEMM_THREADS, 1, 1});
}

/* Slab after slab of W is expanded and multiplied. */
static void encode_expanded(const struct gemm *gemm, struct metal_encoder *encoder) {
    uint32_t experts = gemm->groups != NULL ? gemm->groups->experts : 0;
    uint32_t total = experts > 0 ? gemm->matrix->rows : gemm->y->columns;
    uint32_t rows = slab_rows(gemm->matrix, gemm->up != NULL, experts);
    for (uint32_t first = 0; first < total; first += rows) {
        struct metal_operand slabs[2] = {*gemm->expanded, *gemm->expanded}, y = *gemm->y;
        struct gemm part = *gemm;
        slabs[0].rows = slabs[1].rows = rows < total - first ? rows : total - first;
        slabs[1].offset += (uint64_t)slabs[0].rows * slabs[0].columns * 2;
        metal_phase(encoder); /* what was there is not needed any more */
        encode_expand(gemm->matrix, experts > 0 ? first : gemm->first_out + first, &slabs[0], encoder);
        if (gemm->up != NULL)
            encode_expand(gemm->up, first, &slabs[1], encoder);
        metal_phase(encoder);
        slabs[0].access = slabs[1].access = ACCESS_READ;
        part.matrix = &slabs[0];
        part.up = gemm->up != NULL ? &slabs[1] : NULL;
        if (experts == 0) {
            y.offset += (uint64_t)first * sizeof(float);
            y.columns = slabs[0].rows;
            part.y = &y;
            part.first_out = 0;
        }
        uint32_t expert_rows = experts > 0 ? total / experts : 1;
        launch_gemm(&part, experts > 0 ? first / expert_rows : 0,
                    experts > 0 ? slabs[0].rows / expert_rows : 0, encoder);
    }
}

void encode_gemm(const struct gemm *gemm, struct metal_encoder *encoder) {
    if (gemm->expanded != NULL && gemm->expanded->rows > 0)
        encode_expanded(gemm, encoder);
    else
        launch_gemm(gemm, 0, gemm->groups != NULL ? gemm->groups->experts : 0, encoder);
}
