/* Whether the model thinks before it answers, and how long. Clients say it in many ways; the first of the
 * list that is given wins, and a later one that says otherwise is named in a warning. */
#include <string.h>

#include "server/exchange_state.h"

struct wish {
    const char *by; /* the field that counts; NULL while none is given */
    bool thinking;
};

static void consider(struct exchange *exchange, struct wish *wish, const char *by, bool thinking) {
    if (wish->by == NULL)
        *wish = (struct wish){by, thinking};
    else if (wish->thinking != thinking)
        exchange_warn(exchange, "\"%s\" turns thinking %s, but \"%s\" counts: it is %s.", by,
                      thinking ? "on" : "off", wish->by, wish->thinking ? "on" : "off");
}

static bool read_switch(struct exchange *exchange, struct request_object object, const char *by,
                        struct wish *wish, struct refusal *refusal) {
    bool thinking = true;
    if (!request_boolean(object, "enable_thinking", &thinking, refusal))
        return false;
    if (request_value(object, "enable_thinking") != NULL)
        consider(exchange, wish, by, thinking);
    return true;
}

/* {"type": "enabled"} or {"type": "disabled"}, and the budget beside it. */
static bool read_thinking(struct exchange *exchange, struct request_object request, struct wish *wish,
                          struct request_object *thinking, struct refusal *refusal) {
    const char *type = NULL;
    if (!request_inner(request, "thinking", "thinking.", thinking, refusal) ||
        !request_string(*thinking, "type", &type, refusal))
        return false;
    if (type == NULL)
        return true;
    bool off = strcmp(type, "disabled") == 0;
    if (!off && strcmp(type, "enabled") != 0 && strcmp(type, "adaptive") != 0 && strcmp(type, "auto") != 0)
        return refuse(refusal, "thinking.type", "\"thinking.type\" must be \"enabled\" or \"disabled\".");
    consider(exchange, wish, "thinking.type", !off);
    return true;
}

static bool read_effort(struct exchange *exchange, struct request_object object, const char *name,
                        const char *by, struct wish *wish, struct refusal *refusal) {
    static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    const char *effort = NULL;
    if (!request_string(object, name, &effort, refusal))
        return false;
    if (effort == NULL)
        return true;
    for (size_t i = 0; i < sizeof efforts / sizeof *efforts; i++) {
        if (strcmp(effort, efforts[i]) == 0) {
            consider(exchange, wish, by, i > 0);
            return true;
        }
    }
    return refuse(
        refusal, by,
        "\"%s\" must be \"none\", \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\" or \"max\", "
        "not \"%.60s\".",
        by, effort);
}

/* Tokens of the think block at most; 0 is no thinking, -1 no limit. The first that is given counts. */
static bool read_budget(struct exchange *exchange, struct request_object object, const char *name,
                        const char *by, int64_t *budget, const char **budget_by, struct refusal *refusal) {
    int64_t value = -1;
    if (!request_whole(object, name, -1, INT32_MAX, &value, refusal))
        return false;
    if (request_value(object, name) == NULL)
        return true;
    if (*budget_by == NULL) {
        *budget = value;
        *budget_by = by;
    } else if (value != *budget) {
        exchange_warn(exchange, "\"%s\" is another budget than \"%s\", which counts.", by, *budget_by);
    }
    return true;
}

static bool show_boolean(json_t *view, const char *name, bool value, struct refusal *refusal) {
    return json_object_set_new(view, name, json_boolean(value)) == 0 || refuse_memory(refusal);
}

bool chat_thinking_read(struct exchange *exchange, json_t *request, json_t *view, struct refusal *refusal) {
    struct request_object object = {request, ""}, keywords, thinking, reasoning;
    struct wish wish = {NULL, true};
    const char *budget_by = NULL;
    int64_t budget = -1;
    bool preserve = false;
    if (!request_inner(object, "chat_template_kwargs", "chat_template_kwargs.", &keywords, refusal) ||
        !request_inner(object, "reasoning", "reasoning.", &reasoning, refusal) ||
        !read_switch(exchange, keywords, "chat_template_kwargs.enable_thinking", &wish, refusal) ||
        !read_switch(exchange, object, "enable_thinking", &wish, refusal) ||
        !read_thinking(exchange, object, &wish, &thinking, refusal) ||
        !read_effort(exchange, keywords, "reasoning_effort", "chat_template_kwargs.reasoning_effort", &wish,
                     refusal) ||
        !read_effort(exchange, object, "reasoning_effort", "reasoning_effort", &wish, refusal) ||
        !read_effort(exchange, reasoning, "effort", "reasoning.effort", &wish, refusal))
        return false;
    static const char *const budgets[] = {"reasoning_budget", "thinking_budget", "thinking_token_budget",
                                          "thinking_budget_tokens"};
    if (!read_budget(exchange, keywords, "thinking_budget", "chat_template_kwargs.thinking_budget", &budget,
                     &budget_by, refusal))
        return false;
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++)
        if (!read_budget(exchange, object, budgets[i], budgets[i], &budget, &budget_by, refusal))
            return false;
    if (!read_budget(exchange, thinking, "budget_tokens", "thinking.budget_tokens", &budget, &budget_by,
                     refusal) ||
        !request_boolean(object, "preserve_thinking", &preserve, refusal) ||
        !request_boolean(keywords, "preserve_thinking", &preserve, refusal))
        return false;
    if (budget == 0)
        consider(exchange, &wish, budget_by, false);
    exchange->options.reasoning_budget = budget > 0 ? (uint32_t)budget : 0;
    return show_boolean(view, "enable_thinking", wish.thinking, refusal) &&
           show_boolean(view, "preserve_thinking", preserve, refusal);
}
