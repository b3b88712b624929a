/* What the server answers at which path. */
#ifndef CALLA_SERVER_ROUTE_H
#define CALLA_SERVER_ROUTE_H

#include <stdbool.h>
#include <stddef.h>

enum route_kind {
    ROUTE_UNKNOWN,
    ROUTE_CHAT,
    ROUTE_COMPLETION,
    ROUTE_MODELS,
    ROUTE_MODEL, /* one of them: the path goes on with its name */
    ROUTE_HEALTH,
    ROUTE_METRICS,
    ROUTE_TOKENIZE,
    ROUTE_DETOKENIZE,
    ROUTE_APPLY_TEMPLATE,
    ROUTE_COUNT
};

struct route {
    enum route_kind kind;
    const char *path;  /* as logs and metrics call it */
    const char *allow; /* methods: "GET, HEAD, OPTIONS" */
    bool post;         /* takes a body */
};

/* Never NULL. *rest is what follows the path of ROUTE_MODEL, and "" otherwise. */
const struct route *route_find(const char *url, const char **rest);

#endif
