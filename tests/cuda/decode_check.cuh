/* The decode kernels' results against loops in double on the processor. */
#ifndef CALLA_TESTS_CUDA_DECODE_CHECK_CUH
#define CALLA_TESTS_CUDA_DECODE_CHECK_CUH

#include "decode_step.cuh"

template <typename T> static std::vector<T> fetch(const void *data, uint64_t count) {
    std::vector<T> values(count);
    CHECK(cudaMemcpy(values.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
}

static std::vector<float> fetch(const cuda_view &view) {
    return fetch<float>(view.data, (uint64_t)view.rows * view.columns);
}

static float bf16(uint32_t bits) {
    bits <<= 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* Rows first .. first + rows of a packed matrix, in double. */
static std::vector<double> unpacked(const cuda_view &view, uint32_t first, uint32_t rows) {
    uint32_t tile_bytes = cuda_tile_bytes((enum dtype)view.scale_dtype), tiles = view.columns / 64;
    uint64_t begin = (uint64_t)(first / 16) * tiles * tile_bytes;
    std::vector<unsigned char> bytes =
        fetch<unsigned char>((char *)view.data + begin, (uint64_t)(rows + 15) / 16 * tiles * tile_bytes);
    std::vector<double> values((uint64_t)rows * view.columns);
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t column = 0; column < view.columns; column++) {
            const unsigned char *tile = &bytes[((uint64_t)(row / 16) * tiles + column / 64) * tile_bytes];
            uint32_t r = row % 16, c = column % 64, j = c / 16, within = c % 16;
            uint32_t lane = 4 * (r % 8) + within % 8 / 2, word = (r >= 8 ? 2 : 0) + (within >= 8 ? 1 : 0);
            uint32_t w;
            memcpy(&w, tile + 16 * lane + 4 * word, 4);
            uint32_t code = w >> 4 * (j + (within % 2 ? 4 : 0)) & 15;
            float scale, bias;
            if (tile_bytes == 576) {
                uint32_t pair;
                memcpy(&pair, tile + 512 + 8 * (r % 8) + (r >= 8 ? 4 : 0), 4);
                scale = bf16(pair & 0xffff), bias = bf16(pair >> 16);
            } else {
                memcpy(&scale, tile + 512 + 16 * (r % 8) + (r >= 8 ? 8 : 0), 4);
                memcpy(&bias, tile + 512 + 16 * (r % 8) + (r >= 8 ? 8 : 0) + 4, 4);
            }
            values[(uint64_t)row * view.columns + column] = (double)scale * code + bias;
        }
    return values;
}

static std::vector<double> normalised(const cuda_view &x, const cuda_view *weight) {
    std::vector<float> values = fetch(x);
    std::vector<double> result(values.begin(), values.end());
    if (weight != NULL) {
        std::vector<float> w = fetch(*weight);
        double square = 0;
        for (double value : result)
            square += value * value;
        for (size_t i = 0; i < result.size(); i++)
            result[i] *= w[i] / sqrt(square / (double)result.size() + 1e-6);
    }
    return result;
}

static std::vector<double> product(const std::vector<double> &matrix, const double *x, size_t columns) {
    std::vector<double> y(matrix.size() / columns);
    for (size_t row = 0; row < y.size(); row++)
        for (size_t i = 0; i < columns; i++)
            y[row] += matrix[row * columns + i] * x[i];
    return y;
}

static void compare(const char *what, const std::vector<double> &expected, const std::vector<float> &found) {
    double difference = 0, norm = 0, worst = 0;
    for (size_t i = 0; i < expected.size(); i++) {
        difference += (expected[i] - found[i]) * (expected[i] - found[i]);
        norm += expected[i] * expected[i];
        worst = std::max(worst, fabs(expected[i] - found[i]));
    }
    double relative = sqrt(difference / norm);
    printf("check %-28s relative L2 %.2e, worst %.2e of rms %.2e%s\n", what, relative, worst,
           sqrt(norm / (double)expected.size()), relative < 3e-3 ? "" : "  WRONG");
}

static void run_one(const timed_op &op) {
    CHECK(op.launch(&op.op, &device, workspace, stream));
    CHECK(cudaStreamSynchronize(stream));
}

static double silu(double x) {
    return x / (1 + exp(-x));
}

static void check_linear(const timed_op &op) {
    const cuda_view *views = op.op.views;
    bool normalise = op.op.op.constants.normalise;
    std::vector<double> x = normalised(views[0], normalise ? &views[1] : NULL);
    uint32_t first = normalise ? 2 : 1, count = op.kind == HEAD ? 1 : op.op.op.constants.matrix_count;
    std::vector<std::vector<float>> before;
    for (uint32_t i = 0; i < count; i++)
        before.push_back(fetch(views[first + 2 * i + 1]));
    run_one(op);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t rows = std::min(views[first + 2 * i].rows, 20000u);
        std::vector<double> y = product(unpacked(views[first + 2 * i], 0, rows), x.data(), x.size());
        if (op.op.op.constants.accumulate)
            for (size_t row = 0; row < y.size(); row++)
                y[row] += before[i][row];
        compare(part_names[op.kind], y, fetch(views[first + 2 * i + 1]));
    }
    if (op.kind == HEAD) {
        uint32_t rows = 4096, start = VOCABULARY - rows;
        std::vector<float> all = fetch(views[first + 1]);
        compare("head, last rows", product(unpacked(views[first], start, rows), x.data(), x.size()),
                std::vector<float>(all.begin() + start, all.end()));
    }
}

static std::vector<double> dequantised8(const cuda_view &view) {
    std::vector<unsigned char> codes = fetch<unsigned char>(view.data, (uint64_t)view.rows * view.columns);
    std::vector<float> pairs = fetch<float>(view.scales, (uint64_t)view.rows * view.columns / 32);
    std::vector<double> values(codes.size());
    for (size_t i = 0; i < values.size(); i++)
        values[i] = (double)pairs[i / 64 * 2] * codes[i] + pairs[i / 64 * 2 + 1];
    return values;
}

static void check_router(const timed_op &op) {
    const cuda_view *views = op.op.views;
    std::vector<double> x = normalised(views[0], &views[1]);
    CHECK(cudaMemset(views[4].data, 255, CHOSEN * 4));
    run_one(op);
    std::vector<double> logits = product(dequantised8(views[2]), x.data(), x.size());
    double gate = product(dequantised8(views[3]), x.data(), x.size())[0];
    std::vector<int32_t> ids = fetch<int32_t>(views[4].data, CHOSEN);
    std::vector<uint32_t> order(EXPERTS);
    for (uint32_t i = 0; i < EXPERTS; i++)
        order[i] = i;
    std::sort(order.begin(), order.end(), [&](uint32_t i, uint32_t j) { return logits[i] > logits[j]; });
    std::vector<double> scores;
    double sum = 0;
    int wrong = 0;
    for (uint32_t i = 0; i < CHOSEN; i++) {
        scores.push_back(exp(logits[order[i]] - logits[order[0]]));
        sum += scores[i];
        wrong += ids[i] != (int32_t)order[i];
    }
    for (double &score : scores)
        score /= sum;
    scores.push_back(1 / (1 + exp(-gate)));
    printf("check router ids: %d wrong; logits %.4f .. %.4f\n", wrong, logits[order[0]],
           logits[order[CHOSEN]]);
    compare("router scores", scores, fetch(views[5]));
}

/* `run`: what computes gate_up, by itself or with more. */
static void check_experts(const timed_op &run, const timed_op &gate_up, const timed_op &down) {
    const cuda_view *views = gate_up.op.views;
    std::vector<double> x = normalised(views[0], &views[1]);
    std::vector<float> before = fetch(down.op.views[6]);
    run_one(run);
    run_one(down);
    std::vector<int32_t> ids = fetch<int32_t>(views[2].data, CHOSEN);
    std::vector<float> scores = fetch(down.op.views[3]);
    std::vector<double> expected, y(before.begin(), before.end());
    for (uint32_t i = 0; i <= CHOSEN; i++) {
        bool is_shared = i == CHOSEN;
        uint32_t first = is_shared ? 0 : (uint32_t)ids[i] * WIDTH;
        std::vector<double> gate =
            product(unpacked(views[is_shared ? 5 : 3], first, WIDTH), x.data(), HIDDEN);
        std::vector<double> up = product(unpacked(views[is_shared ? 6 : 4], first, WIDTH), x.data(), HIDDEN);
        for (uint32_t row = 0; row < WIDTH; row++)
            gate[row] = silu(gate[row]) * up[row];
        std::vector<double> out = product(
            unpacked(down.op.views[is_shared ? 5 : 4], is_shared ? 0 : (uint32_t)ids[i] * HIDDEN, HIDDEN),
            gate.data(), WIDTH);
        for (uint32_t row = 0; row < HIDDEN; row++)
            y[row] += scores[i] * out[row];
        if (is_shared)
            compare("gate up, shared", gate, fetch(views[8]));
        else
            expected.insert(expected.end(), gate.begin(), gate.end());
    }
    compare("gate up, routed", expected, fetch(views[7]));
    compare("down", y, fetch(down.op.views[6]));
}

static void check_delta(const timed_op &op, uint32_t position) {
    const cuda_view *views = op.op.views;
    std::vector<float> qkv = fetch(views[1]), a = fetch(views[2]), b = fetch(views[3]),
                       taps = fetch(views[4]), A_log = fetch(views[5]), dt_bias = fetch(views[6]),
                       z = fetch(views[7]), weight = fetch(views[8]), history = fetch(views[9]),
                       state = fetch(views[10]);
    run_one(op);
    std::vector<double> convolved(CHANNELS), y(VALUES), new_state(state.size()),
        new_history(history.begin(), history.end());
    for (uint32_t c = 0; c < CHANNELS; c++) {
        double sum = (double)taps[c * TAPS + TAPS - 1] * qkv[c];
        for (uint32_t j = 1; j < TAPS; j++)
            sum += (double)taps[c * TAPS + TAPS - 1 - j] * history[(position - j) % TAPS * CHANNELS + c];
        convolved[c] = silu(sum);
        new_history[position % TAPS * CHANNELS + c] = qkv[c];
    }
    for (uint32_t head = 0; head < VALUE_HEADS; head++) {
        const double *q = &convolved[head / 2 * SIZE], *k = q + KEY_HEADS * SIZE,
                     *v = &convolved[2 * KEY_HEADS * SIZE + head * SIZE];
        double qq = 0, kk = 0, squares = 0, out[SIZE];
        for (uint32_t i = 0; i < SIZE; i++)
            qq += q[i] * q[i], kk += k[i] * k[i];
        double q_scale = 1 / sqrt(qq + 1e-6) / sqrt((double)SIZE), k_scale = 1 / sqrt(kk + 1e-6);
        double decay = exp(-exp((double)A_log[head]) * log1p(exp((double)a[head] + dt_bias[head]))),
               beta = 1 / (1 + exp(-(double)b[head]));
        for (uint32_t row = 0; row < SIZE; row++) {
            const float *old = &state[(head * SIZE + row) * SIZE];
            double *now = &new_state[(head * SIZE + row) * SIZE], seen = 0;
            out[row] = 0;
            for (uint32_t i = 0; i < SIZE; i++)
                seen += decay * old[i] * k[i] * k_scale;
            for (uint32_t i = 0; i < SIZE; i++) {
                now[i] = decay * old[i] + beta * (v[row] - seen) * k[i] * k_scale;
                out[row] += now[i] * q[i] * q_scale;
            }
            squares += out[row] * out[row];
        }
        for (uint32_t row = 0; row < SIZE; row++)
            y[head * SIZE + row] =
                out[row] / sqrt(squares / SIZE + 1e-6) * weight[row] * silu(z[head * SIZE + row]);
    }
    compare("delta step", y, fetch(views[11]));
    compare("delta step, state", new_state, fetch(views[10]));
    compare("delta step, history", new_history, fetch(views[9]));
}

static void turn(std::vector<double> &x, uint32_t position) {
    for (uint32_t j = 0; j < 32; j++) {
        float frequency = 1.0f / powf(1e7f, (float)(2 * j) / 64), angle = (float)position * frequency;
        double first = x[j], second = x[j + 32];
        x[j] = first * cos((double)angle) - second * sin((double)angle);
        x[j + 32] = second * cos((double)angle) + first * sin((double)angle);
    }
}

static std::vector<double> head_normalised(const float *x, const std::vector<float> &weight) {
    std::vector<double> y(HEAD_SIZE);
    double square = 0;
    for (uint32_t i = 0; i < HEAD_SIZE; i++)
        square += (double)x[i] * x[i];
    for (uint32_t i = 0; i < HEAD_SIZE; i++)
        y[i] = x[i] / sqrt(square / HEAD_SIZE + 1e-6) * weight[i];
    return y;
}

static void check_attention(const timed_op &prepare, const timed_op &attention, uint32_t position) {
    const cuda_view *views = prepare.op.views;
    std::vector<float> q_and_gate = fetch<float>(views[1].data, 2 * HEADS * HEAD_SIZE), k = fetch(views[2]),
                       v = fetch(views[3]);
    run_one(prepare);
    run_one(attention);
    std::vector<double> expected;
    for (uint32_t head = 0; head < HEADS; head++) {
        std::vector<double> y = head_normalised(&q_and_gate[head * 2 * HEAD_SIZE], fetch(views[4]));
        turn(y, position);
        expected.insert(expected.end(), y.begin(), y.end());
    }
    std::vector<float> query = fetch(views[6]);
    compare("qk prep, query", expected, query);
    uint32_t width = KV_HEADS * HEAD_SIZE;
    std::vector<uint16_t> keys = fetch<uint16_t>(views[7].data, (uint64_t)(position + 1) * width),
                          values = fetch<uint16_t>(views[8].data, (uint64_t)(position + 1) * width);
    std::vector<double> row(width);
    std::vector<float> written(width), written_v(width);
    int differs = 0;
    for (uint32_t head = 0; head < KV_HEADS; head++) {
        std::vector<double> y = head_normalised(&k[head * HEAD_SIZE], fetch(views[5]));
        turn(y, position);
        for (uint32_t i = 0; i < HEAD_SIZE; i++) {
            row[head * HEAD_SIZE + i] = y[i];
            written[head * HEAD_SIZE + i] = bf16(keys[(uint64_t)position * width + head * HEAD_SIZE + i]);
            written_v[head * HEAD_SIZE + i] = bf16(values[(uint64_t)position * width + head * HEAD_SIZE + i]);
            differs += fabs(written_v[head * HEAD_SIZE + i] - v[head * HEAD_SIZE + i]) >
                       0.004 * fabs(v[head * HEAD_SIZE + i]);
        }
    }
    compare("qk prep, key (bfloat16)", row, written);
    if (differs > 0)
        printf("check qk prep, value: %d WRONG\n", differs);
    expected.assign(HEADS * HEAD_SIZE, 0);
    for (uint32_t head = 0; head < HEADS; head++) {
        std::vector<double> scores(position + 1);
        double largest = -1e300, total = 0;
        uint32_t column = head / 8 * HEAD_SIZE;
        for (uint32_t i = 0; i <= position; i++) {
            double sum = 0;
            for (uint32_t j = 0; j < HEAD_SIZE; j++)
                sum += (double)query[head * HEAD_SIZE + j] * bf16(keys[(uint64_t)i * width + column + j]);
            scores[i] = sum / 16;
            largest = std::max(largest, scores[i]);
        }
        for (uint32_t i = 0; i <= position; i++) {
            double weight = exp(scores[i] - largest);
            total += weight;
            for (uint32_t j = 0; j < HEAD_SIZE; j++)
                expected[head * HEAD_SIZE + j] += weight * bf16(values[(uint64_t)i * width + column + j]);
        }
        for (uint32_t j = 0; j < HEAD_SIZE; j++)
            expected[head * HEAD_SIZE + j] *=
                1 / total / (1 + exp(-(double)q_and_gate[(head * 2 + 1) * HEAD_SIZE + j]));
    }
    compare("attention", expected, fetch(attention.op.views[5]));
}

#endif
