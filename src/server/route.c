#include "server/route.h"

#include <string.h>

#define READS "GET, HEAD, OPTIONS"
#define WRITES "POST, OPTIONS"

static const struct route routes[] = {
    {ROUTE_CHAT, "/v1/chat/completions", WRITES, true},
    {ROUTE_COMPLETION, "/v1/completions", WRITES, true},
    {ROUTE_MODELS, "/v1/models", READS, false},
    {ROUTE_HEALTH, "/health", READS, false},
    {ROUTE_METRICS, "/metrics", READS, false},
    {ROUTE_TOKENIZE, "/tokenize", WRITES, true},
    {ROUTE_DETOKENIZE, "/detokenize", WRITES, true},
    {ROUTE_APPLY_TEMPLATE, "/apply-template", WRITES, true},
};
static const struct route model_route = {ROUTE_MODEL, "/v1/models/{model}", READS, false};
static const struct route unknown_route = {ROUTE_UNKNOWN, "other", "", false};

const struct route *route_find(const char *url, const char **rest) {
    static const char models[] = "/v1/models/";
    *rest = "";
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++)
        if (strcmp(url, routes[i].path) == 0)
            return &routes[i];
    if (strncmp(url, models, sizeof models - 1) == 0 && url[sizeof models - 1] != 0) {
        *rest = url + sizeof models - 1;
        return &model_route;
    }
    return &unknown_route;
}
