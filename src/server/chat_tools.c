/* The tools of a chat completion and the choice among them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/exchange_state.h"

#define MAX_TOOLS 1024
/* As long as a name that the reply parser takes for one. */
#define MAX_NAME_BYTES 256

static bool is_name(const json_t *name) {
    const char *text = json_string_value(name);
    size_t size = json_string_length(name);
    return text != NULL && size > 0 && size <= MAX_NAME_BYTES && strpbrk(text, "<>\r\n") == NULL;
}

/* Where a tool of either form, {"function": {"name"}} or {"name"}, keeps what it is. */
static json_t *function_of(json_t *tool) {
    json_t *function = json_object_get(tool, "function");
    return function == NULL || json_is_null(function) ? tool : function;
}

/* *known is false for a tool of a type that this server has no use for. */
static bool check_tool(struct exchange *exchange, json_t *tool, size_t index, bool *known,
                       struct refusal *refusal) {
    char path[48];
    snprintf(path, sizeof path, "tools[%zu]", index);
    if (!json_is_object(tool))
        return refuse(refusal, path, "%s must be an object, not %s.", path, request_kind(tool));
    snprintf(path, sizeof path, "tools[%zu].", index);
    struct request_object object = {tool, path};
    const char *type = "function";
    if (!request_string(object, "type", &type, refusal))
        return false;
    *known = strcmp(type, "function") == 0;
    if (!*known) {
        exchange_warn(exchange,
                      "tools[%zu] was skipped: its type is \"%.100s\", and only functions are used.", index,
                      type);
        return true;
    }
    struct request_object function, parameters;
    char inner[64];
    snprintf(inner, sizeof inner, "tools[%zu].function.", index);
    if (!request_inner(object, "function", inner, &function, refusal))
        return false;
    if (function.json == NULL)
        function = object;
    const char *description;
    if (!request_string(function, "description", &description, refusal) ||
        !request_inner(function, "parameters", "", &parameters, refusal))
        return false;
    if (is_name(json_object_get(function.json, "name")))
        return true;
    char name[80];
    snprintf(name, sizeof name, "%sname", function.path);
    return refuse(refusal, name, "\"%s\" must be a string of 1 to %d bytes without <, > and line ends.", name,
                  MAX_NAME_BYTES);
}

static json_t *read_tools(struct exchange *exchange, json_t *given, struct refusal *refusal) {
    json_t *tools = json_array();
    bool ok = tools != NULL || refuse_memory(refusal);
    for (size_t i = 0; ok && i < json_array_size(given); i++) {
        json_t *tool = json_array_get(given, i);
        bool known = false;
        ok = check_tool(exchange, tool, i, &known, refusal) &&
             (!known || json_array_append(tools, tool) == 0 || refuse_memory(refusal));
    }
    if (ok)
        return tools;
    json_decref(tools);
    return NULL;
}

static bool declares(json_t *tools, const char *name) {
    size_t index;
    json_t *tool;
    json_array_foreach(tools, index, tool) {
        if (strcmp(json_string_value(json_object_get(function_of(tool), "name")), name) == 0)
            return true;
    }
    return false;
}

/* A choice of one function: {"type": "function", "function": {"name": ...}}, or the name beside the type. */
static bool choose_function(struct exchange *exchange, json_t *choice, json_t *tools,
                            struct refusal *refusal) {
    const char *type = json_string_value(json_object_get(choice, "type"));
    const json_t *name = json_object_get(function_of(choice), "name");
    if (type == NULL || strcmp(type, "function") != 0 || !json_is_string(name))
        return refuse(refusal, "tool_choice",
                      "\"tool_choice\" must be \"auto\", \"none\", \"required\" or {\"type\": \"function\", "
                      "\"function\": {\"name\": ...}}.");
    if (!declares(tools, json_string_value(name)))
        return refuse(refusal, "tool_choice",
                      "\"tool_choice\" names the function \"%.200s\", which \"tools\" does not have.",
                      json_string_value(name));
    exchange->tool_name = strdup(json_string_value(name));
    exchange->options.tool_name = exchange->tool_name;
    exchange->options.tool_required = true;
    return exchange->tool_name != NULL || refuse_memory(refusal);
}

/* *shown is whether the model hears of the tools at all. */
static bool read_choice(struct exchange *exchange, json_t *choice, json_t *tools, bool *shown,
                        struct refusal *refusal) {
    const char *word = json_string_value(choice);
    *shown = word == NULL || strcmp(word, "none") != 0;
    if (choice == NULL || !*shown || (word != NULL && strcmp(word, "auto") == 0))
        return true;
    if (word == NULL || strcmp(word, "required") != 0)
        return choose_function(exchange, choice, tools, refusal);
    exchange->options.tool_required = true;
    return json_array_size(tools) > 0 ||
           refuse(refusal, "tool_choice",
                  "\"tool_choice\" is \"required\", but there are no functions in "
                  "\"tools\".");
}

bool chat_tools_read(struct exchange *exchange, json_t *request, json_t *view, struct refusal *refusal) {
    struct request_object object = {request, ""};
    json_t *given = request_value(object, "tools");
    if (given != NULL && !json_is_array(given))
        return refuse(refusal, "tools", "\"tools\" must be a list, not %s.", request_kind(given));
    if (json_array_size(given) > MAX_TOOLS)
        return refuse(refusal, "tools", "\"tools\" has %zu tools; at most %d are read.",
                      json_array_size(given), MAX_TOOLS);
    const json_t *functions = request_value(object, "functions");
    if (functions != NULL && !(json_is_array(functions) && json_array_size(functions) == 0))
        return refuse(refusal, "functions", "\"functions\" is not supported; use \"tools\".");
    bool parallel = true, shown = true;
    if (!request_boolean(object, "parallel_tool_calls", &parallel, refusal))
        return false;
    exchange->options.one_call = !parallel;
    json_t *tools = read_tools(exchange, given, refusal);
    bool ok =
        tools != NULL && read_choice(exchange, request_value(object, "tool_choice"), tools, &shown, refusal);
    if (ok && shown && json_array_size(tools) > 0)
        ok = json_object_set(view, "tools", tools) == 0 || refuse_memory(refusal);
    json_decref(tools);
    return ok;
}
