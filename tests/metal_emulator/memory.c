/* Every load and store of a checked kernel comes through memory_access: whose memory is it, may the kernel
 * touch it, and who else did without a barrier in between? */
#include <stdio.h>
#include <sys/mman.h>

#include "metal_emulator/emulator.h"

enum { DEVICE, THREADGROUP }; /* indices of epochs */

/* One access, as it is held against what is written down. */
struct now {
    struct touch touch;
    uint32_t phase_run; /* runs from here on are of the same dispatch */
    bool store;
};

static bool is_same_simdgroup(const struct touch *a, const struct touch *b) {
    return a->lane / METAL_SIMD_WIDTH == b->lane / METAL_SIMD_WIDTH;
}

/* Whether a barrier, or the order of one lane's own accesses, lies between `before` and now. */
static bool is_ordered(const struct touch *before, bool before_store, const struct now *now) {
    const struct touch *touch = &now->touch;
    if ((before->kind & EMULATOR_ATOMIC) != 0 && (touch->kind & EMULATOR_ATOMIC) != 0)
        return true;
    if (before->run != touch->run)
        return false;
    if (before->epoch != touch->epoch)
        return true;
    if (!is_same_simdgroup(before, touch))
        return false;
    if (before->simd_epoch != touch->simd_epoch)
        return true;
    bool collective = (before->kind & EMULATOR_COLLECTIVE) != 0,
         collective_now = (touch->kind & EMULATOR_COLLECTIVE) != 0;
    if (collective && collective_now) /* in order, but not which lane reads which element of the store */
        return !(before_store && !now->store);
    /* Which lane has which element of a matrix is not said, so a lane's own access is another's there. */
    return before->lane == touch->lane && !collective && !collective_now;
}

enum conflict { NO_CONFLICT, WITH_WRITE, WITH_READ };

/* Writes this access down; *earlier becomes the one that it races with, if any. */
static enum conflict touch_cell(struct cell *cell, const struct now *now, struct touch *earlier) {
    const struct touch *touch = &now->touch;
    enum conflict conflict = NO_CONFLICT;
    if (cell->write.run >= now->phase_run && !is_ordered(&cell->write, true, now)) {
        conflict = WITH_WRITE;
        *earlier = cell->write;
    }
    if (conflict == NO_CONFLICT && now->store && cell->read.run >= now->phase_run) {
        const struct touch *read = &cell->read;
        bool same_epoch = read->run == touch->run && read->epoch == touch->epoch;
        bool now_atomic = (touch->kind & EMULATOR_ATOMIC) != 0;
        bool atomic = (read->kind & EMULATOR_ATOMIC) != 0 && now_atomic;
        if (!is_ordered(read, false, now) || read->groups_plain || (read->groups && !now_atomic) ||
            (same_epoch && !atomic &&
             (read->simdgroups ||
              (read->lanes && is_same_simdgroup(read, touch) && read->simd_epoch == touch->simd_epoch)))) {
            conflict = WITH_READ;
            *earlier = *read;
        }
    }
    if (now->store) {
        cell->write = *touch;
        return conflict;
    }
    struct touch *read = &cell->read;
    bool lanes = false, simdgroups = false, groups = false, groups_plain = false;
    if (read->run >= now->phase_run) {
        bool other = read->run != touch->run;
        groups = read->groups || other;
        groups_plain = read->groups_plain || (other && (read->kind & EMULATOR_ATOMIC) == 0);
    }
    if (read->run == touch->run && read->epoch == touch->epoch) {
        simdgroups = read->simdgroups || !is_same_simdgroup(read, touch);
        lanes = is_same_simdgroup(read, touch) && read->simd_epoch == touch->simd_epoch &&
                (read->lanes || read->lane != touch->lane);
    }
    *read = *touch;
    read->lanes = lanes;
    read->simdgroups = simdgroups;
    read->groups = groups;
    read->groups_plain = groups_plain;
    return conflict;
}

static void report_race(struct worker *worker, const struct touch *before, enum conflict conflict,
                        const struct now *now, const char *where, const void *site) {
    const struct metal_library *library = worker->dispatch->pipeline->library;
    const void *other = (const void *)(library->low + before->site);
    char name[96], earlier[96];
    bool by_group = conflict == WITH_READ && (before->groups_plain || before->groups);
    enum metal_fault_kind kind = before->run != now->touch.run || by_group ? METAL_RACE_OF_THREADGROUPS
                                 : is_same_simdgroup(before, &now->touch)  ? METAL_RACE_OF_LANES
                                                                           : METAL_RACE_OF_SIMDGROUPS;
    if (kind == METAL_RACE_OF_THREADGROUPS)
        snprintf(earlier, sizeof earlier, "another threadgroup of the same dispatch");
    else
        lane_name(worker, before->lane, earlier);
    report(worker->device, worker->dispatch, kind, site, other,
           "%s %s %s, which %s %s without a barrier in between", lane_name(worker, now->touch.lane, name),
           now->store ? "writes" : "reads", where, earlier,
           conflict == WITH_WRITE ? "has written" : "has read");
}

/* ---- Threadgroup memory */

static const struct variable *variable_at(const struct worker *worker, uint32_t offset) {
    for (uint32_t i = 0; i < worker->variable_count; i++)
        if (offset >= worker->variables[i].offset &&
            offset < worker->variables[i].offset + worker->variables[i].size)
            return &worker->variables[i];
    return NULL;
}

static void access_threadgroup(struct worker *worker, uint32_t offset, uint32_t size, struct now *now,
                               const void *site) {
    const struct variable *variable = variable_at(worker, offset);
    const uint32_t lane_index = now->touch.lane;
    char name[96], where[160];
    if (variable == NULL || offset + size > variable->offset + variable->size) {
        report(worker->device, worker->dispatch, METAL_OUTSIDE_BUFFER, site, NULL,
               "%s %s %u bytes of threadgroup memory%s%s%s", lane_name(worker, now->touch.lane, name),
               now->store ? "writes" : "reads", size,
               variable != NULL ? " beyond the end of '" : " that nothing declares",
               variable != NULL ? variable->name : "", variable != NULL ? "'" : "");
        worker_abort(worker);
        return;
    }
    now->touch.epoch = worker->epoch[THREADGROUP];
    now->touch.simd_epoch = worker->simdgroups[now->touch.lane / METAL_SIMD_WIDTH].epoch[THREADGROUP];
    now->phase_run = worker->run; /* earlier threadgroups had memory of their own */
    for (uint32_t i = 0; i < size; i++) {
        struct cell *cell = &worker->cells[offset + i];
        struct touch earlier;
        if (!now->store && cell->write.run != worker->run && worker->unwritten.site == NULL)
            worker->unwritten =
                (struct unwritten){variable->name, offset + i - variable->offset, lane_index, site};
        enum conflict conflict = touch_cell(cell, now, &earlier);
        if (conflict != NO_CONFLICT) {
            snprintf(where, sizeof where, "byte %u of '%s' in threadgroup memory", offset - variable->offset,
                     variable->name);
            report_race(worker, &earlier, conflict, now, where, site);
            return;
        }
    }
}

/* What was read before anybody had written it: a race, which was reported, if somebody has meanwhile. */
void memory_report_unwritten(struct worker *worker) {
    const struct unwritten *unwritten = &worker->unwritten;
    char name[96];
    if (unwritten->site != NULL)
        report(worker->device, worker->dispatch, METAL_UNWRITTEN, unwritten->site, NULL,
               "%s reads byte %u of '%s' in threadgroup memory, which nobody has written",
               lane_name(worker, unwritten->lane, name), unwritten->offset, unwritten->variable);
}

void *memory_variable(uint32_t id, uint32_t size, uint32_t alignment, const char *name) {
    struct worker *worker = worker_current();
    for (uint32_t i = 0; i < worker->variable_count; i++)
        if (worker->variables[i].id == id)
            return worker->arena + worker->variables[i].offset;
    alignment = alignment < 16 ? 16 : alignment;
    uint32_t offset = (worker->arena_used + alignment - 1) / alignment * alignment;
    uint64_t end = (uint64_t)offset + size;
    if (end > METAL_MAX_THREADGROUP_BYTES ||
        worker->variable_count == sizeof worker->variables / sizeof *worker->variables) {
        report(worker->device, worker->dispatch, METAL_TOO_MUCH_THREADGROUP_MEMORY, NULL, NULL,
               "'%s' takes the threadgroup memory to %llu bytes, more than the %d that there are", name,
               (unsigned long long)end, METAL_MAX_THREADGROUP_BYTES);
        worker_abort(worker);
        return NULL;
    }
    worker->arena_used = (uint32_t)end;
    worker->variables[worker->variable_count++] = (struct variable){id, offset, size, name};
    struct metal_limits *limits = &worker->dispatch->pipeline->limits;
    if (worker->device->options.checked) /* else other workers write it too */
        limits->threadgroup_bytes =
            limits->threadgroup_bytes < end ? (uint32_t)end : limits->threadgroup_bytes;
    return worker->arena + offset;
}

/* ---- Buffers */

/* Whether bytes at..at+size of a buffer lie within a row of the view. */
static bool view_has(const struct metal_view *view, uint64_t at, uint64_t size) {
    if (at < view->offset)
        return false;
    uint64_t from = at - view->offset, row = view->rows > 1 && view->stride > 0 ? from / view->stride : 0;
    return row < view->rows && from - row * view->stride + size <= view->row_bytes;
}

static struct cell *cells_of(struct metal_buffer *buffer) {
    if (buffer->cells == NULL) {
        void *cells = mmap(NULL, buffer->size * sizeof(struct cell), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        buffer->cells = cells == MAP_FAILED ? NULL : cells;
    }
    return buffer->cells;
}

static const struct slot *slot_at(struct worker *worker, const unsigned char *address, uint32_t size,
                                  bool store, bool *in_a_buffer, const struct slot **nearest) {
    uintptr_t wanted = (uintptr_t)address;
    const struct slot *plain = NULL;
    for (uint32_t i = 0; i < METAL_BUFFER_SLOTS; i++) {
        const struct slot *slot = &worker->dispatch->slots[i];
        if (!slot->set)
            continue;
        const struct metal_buffer *buffer = slot->view.buffer;
        if (buffer == NULL) {
            if (wanted >= (uintptr_t)slot->bytes && wanted + size <= (uintptr_t)slot->bytes + slot->size) {
                *in_a_buffer = true;
                if (!store)
                    return slot;
            }
            continue;
        }
        *nearest = *nearest == NULL || (wanted >= (uintptr_t)slot->bytes && slot->bytes > (*nearest)->bytes)
                       ? slot
                       : *nearest;
        if (wanted < (uintptr_t)buffer->bytes || wanted + size > (uintptr_t)buffer->bytes + buffer->size)
            continue;
        *in_a_buffer = true;
        if (!view_has(&slot->view, wanted - (uintptr_t)buffer->bytes, size))
            continue;
        if ((slot->view.access & (store ? METAL_WRITE : METAL_READ | METAL_WRITE)) == 0)
            continue;
        if (slot->tracked)
            return slot;
        plain = slot;
    }
    return plain;
}

static void access_device(struct worker *worker, const unsigned char *address, uint32_t size, struct now *now,
                          const void *site) {
    bool in_a_buffer = false;
    const struct slot *nearest = NULL, *slot = worker->last_slot;
    if (slot == NULL || slot->tracked || now->store || slot->view.buffer == NULL ||
        (uintptr_t)address < (uintptr_t)slot->view.buffer->bytes ||
        !view_has(&slot->view, (uint64_t)((uintptr_t)address - (uintptr_t)slot->view.buffer->bytes), size))
        slot = slot_at(worker, address, size, now->store, &in_a_buffer, &nearest);
    char name[96], where[160];
    if (slot == NULL) {
        const char *verb = now->store ? "writes" : "reads";
        lane_name(worker, now->touch.lane, name);
        if (nearest == NULL)
            report(worker->device, worker->dispatch, METAL_OUTSIDE_BUFFER, site, NULL,
                   "%s %s %u bytes at %p, where nothing is bound", name, verb, size, (const void *)address);
        else
            report(worker->device, worker->dispatch,
                   in_a_buffer ? METAL_OUTSIDE_OPERANDS : METAL_OUTSIDE_BUFFER, site, NULL,
                   in_a_buffer ? "%s %s %u bytes at byte %lld of buffer '%s' (%llu bytes), which no slot "
                                 "allows; the nearest is slot %u at byte %llu"
                               : "%s %s %u bytes at byte %lld of buffer '%s', which has %llu; the nearest is "
                                 "slot %u at byte %llu",
                   name, verb, size, (long long)((intptr_t)address - (intptr_t)nearest->view.buffer->bytes),
                   nearest->view.buffer->label, (unsigned long long)nearest->view.buffer->size,
                   (unsigned)(nearest - worker->dispatch->slots), (unsigned long long)nearest->view.offset);
        worker_abort(worker);
        return;
    }
    worker->last_slot = slot;
    if (!slot->tracked)
        return;
    struct metal_buffer *buffer = slot->view.buffer;
    struct cell *cells = cells_of(buffer);
    uint64_t at = (uint64_t)(address - buffer->bytes);
    now->touch.epoch = worker->epoch[DEVICE];
    now->touch.simd_epoch = worker->simdgroups[now->touch.lane / METAL_SIMD_WIDTH].epoch[DEVICE];
    now->phase_run = worker->dispatch->first_run;
    bool reads_output = !now->store && (slot->view.access & METAL_READ) == 0;
    for (uint32_t i = 0; cells != NULL && i < size; i++) {
        struct touch earlier;
        if (reads_output && cells[at + i].write.run < now->phase_run) {
            report(worker->device, worker->dispatch, METAL_OUTSIDE_OPERANDS, site, NULL,
                   "%s reads byte %llu of buffer '%s' (slot %u), which is only to be written and was not yet",
                   lane_name(worker, now->touch.lane, name), (unsigned long long)(at + i), buffer->label,
                   (unsigned)(slot - worker->dispatch->slots));
            return;
        }
        enum conflict conflict = touch_cell(&cells[at + i], now, &earlier);
        if (conflict != NO_CONFLICT) {
            snprintf(where, sizeof where, "byte %llu of buffer '%s' (slot %u)", (unsigned long long)(at + i),
                     buffer->label, (unsigned)(slot - worker->dispatch->slots));
            report_race(worker, &earlier, conflict, now, where, site);
            return;
        }
    }
}

/* ---- All of it */

void memory_access(const void *address, uint32_t size, uint32_t kind, const void *site) {
    struct worker *worker = worker_current();
    if (worker == NULL) /* function constants are being set */
        return;
    struct lane *lane = worker->current;
    uintptr_t at = (uintptr_t)address;
    bool own_stack = at >= (uintptr_t)lane->stack && at < (uintptr_t)lane->stack + STACK_BYTES;
    if (own_stack || (at >= (uintptr_t)&lane->launch && at < (uintptr_t)(&lane->launch + 1)))
        return;
    const struct metal_library *library = worker->dispatch->pipeline->library;
    if (size == 0)
        return;
    if (++worker->accesses > worker->device->options.access_limit) {
        report(worker->device, worker->dispatch, METAL_ENDLESS, site, NULL,
               "more than %llu loads and stores in one dispatch: a loop without an end, or too much work for "
               "one",
               (unsigned long long)worker->device->options.access_limit);
        worker_abort(worker);
        return;
    }
    if ((kind & EMULATOR_COLLECTIVE) != 0)
        site = lane->last_together;
    struct now now = {.store = (kind & EMULATOR_STORE) != 0};
    now.touch = (struct touch){.run = worker->run,
                               .site = (uint32_t)((uintptr_t)site - library->low),
                               .lane = lane->index,
                               .kind = (uint8_t)(kind & (EMULATOR_ATOMIC | EMULATOR_COLLECTIVE))};
    if ((kind & EMULATOR_UNALIGNED) == 0 && at % size != 0) {
        char name[96];
        report(worker->device, worker->dispatch, METAL_MISALIGNED, site, NULL,
               "%s %s %u bytes at an address that is no multiple of %u", lane_name(worker, lane->index, name),
               now.store ? "writes" : "reads", size, size);
        worker_abort(worker); /* this processor may not survive it */
        return;
    }
    if (at >= (uintptr_t)worker->arena && at < (uintptr_t)worker->arena + ARENA_BYTES)
        access_threadgroup(worker, (uint32_t)(at - (uintptr_t)worker->arena), size, &now, site);
    else if (at < library->low || at >= library->high)
        access_device(worker, address, size, &now, site);
    else if (now.store) {
        char name[96];
        report(worker->device, worker->dispatch, METAL_OUTSIDE_OPERANDS, site, NULL,
               "%s writes a variable of the program: Metal has only constants there",
               lane_name(worker, lane->index, name));
    }
}

bool views_overlap(const struct metal_view *a, const struct metal_view *b) {
    if (a->buffer != b->buffer || a->buffer == NULL)
        return false;
    const struct metal_view *many = a->rows >= b->rows ? a : b, *few = many == a ? b : a;
    for (uint64_t row = 0; row < few->rows; row++) {
        uint64_t from = few->offset + row * few->stride, end = from + few->row_bytes;
        if (end <= many->offset)
            continue;
        /* The first row of `many` that ends after `from`. */
        uint64_t first = 0;
        if (from >= many->offset + many->row_bytes && many->stride > 0)
            first = (from - many->offset - many->row_bytes) / many->stride + 1;
        if (first < many->rows && many->offset + first * many->stride < end)
            return true;
    }
    return false;
}

/* ---- Views of which every byte is to be written */

#define POISON 0xff /* a NaN in every type */

void memory_poison(struct dispatch *dispatch) {
    for (uint32_t i = 0; i < METAL_BUFFER_SLOTS; i++) {
        const struct metal_view *view = &dispatch->slots[i].view;
        if (dispatch->slots[i].set && view->buffer != NULL && view->access == (METAL_WRITE | METAL_ALL))
            for (uint64_t row = 0; row < view->rows; row++)
                memset(view->buffer->bytes + view->offset + row * view->stride, POISON, view->row_bytes);
    }
}

void memory_check_written(struct metal_device *device, struct dispatch *dispatch) {
    for (uint32_t i = 0; i < METAL_BUFFER_SLOTS; i++) {
        const struct metal_view *view = &dispatch->slots[i].view;
        if (!dispatch->slots[i].set || view->buffer == NULL || view->access != (METAL_WRITE | METAL_ALL))
            continue;
        const struct cell *cells = cells_of(view->buffer);
        for (uint64_t row = 0; cells != NULL && row < view->rows; row++)
            for (uint64_t j = 0; j < view->row_bytes; j++)
                if (cells[view->offset + row * view->stride + j].write.run < dispatch->first_run) {
                    report(device, dispatch, METAL_LEFT_UNWRITTEN, NULL, NULL,
                           "byte %llu of row %llu of slot %u (buffer '%s') is not written",
                           (unsigned long long)j, (unsigned long long)row, (unsigned)i, view->buffer->label);
                    return;
                }
    }
}
