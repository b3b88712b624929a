#include "server/guard.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/sha256.h"

#define KEY_FILE_LIMIT ((size_t)1 << 20)

/* Keys are kept and compared as hashes, so that the time a comparison takes tells nothing about a key. */
struct key {
    unsigned char digest[32];
};

struct guard {
    struct guard_options options;
    struct key *keys;
    size_t key_count;
};

static bool add_key(struct guard *guard, const char *key, size_t size) {
    struct key *keys = realloc(guard->keys, (guard->key_count + 1) * sizeof *keys);
    if (keys == NULL)
        return false;
    guard->keys = keys;
    struct sha256 hash;
    sha256_start(&hash);
    sha256_add(&hash, key, size);
    sha256_finish(&hash, keys[guard->key_count++].digest);
    return true;
}

static bool read_lines(struct guard *guard, const char *path, const char *text, struct calla_error *error) {
    for (size_t line = 1; *text != 0; line++) {
        size_t size = strcspn(text, "\n");
        const char *next = text[size] == 0 ? text + size : text + size + 1;
        while (size > 0 && strchr(" \t\r", text[size - 1]) != NULL)
            size--;
        for (size_t i = 0; i < size; i++)
            if (text[i] <= ' ' || text[i] > '~')
                return error_set(error, CALLA_BAD_INPUT,
                                 "%s, line %zu: a key is one word of printable ASCII characters.", path,
                                 line);
        if (size > 0 && !add_key(guard, text, size))
            return error_memory(error, "the API keys", size);
        text = next;
    }
    return guard->key_count > 0 ||
           error_set(error, CALLA_BAD_INPUT, "%s has no key; write one key a line.", path);
}

static bool read_keys(struct guard *guard, const char *path, struct calla_error *error) {
    struct stat status;
    if (stat(path, &status) == 0 && (status.st_mode & 077) != 0)
        return error_set(error, CALLA_BAD_INPUT,
                         "%s can be read or written by others than its owner; run chmod 600 on it.", path);
    struct buffer text = {0};
    bool ok = file_read(path, KEY_FILE_LIMIT, &text, error);
    if (ok && text.size > 0 && memchr(text.data, 0, text.size) != NULL)
        ok = error_set(error, CALLA_BAD_INPUT, "%s is not a text file: it holds a zero byte.", path);
    ok = ok && read_lines(guard, path, text.size == 0 ? "" : text.data, error);
    buffer_free(&text);
    return ok;
}

struct guard *guard_open(const struct guard_options *options, struct calla_error *error) {
    struct guard *guard = calloc(1, sizeof *guard);
    if (guard == NULL) {
        error_memory(error, "the guard", sizeof *guard);
        return NULL;
    }
    guard->options = *options;
    if (options->key_file == NULL || read_keys(guard, options->key_file, error))
        return guard;
    guard_close(guard);
    return NULL;
}

void guard_close(struct guard *guard) {
    if (guard == NULL)
        return;
    free(guard->keys);
    free(guard);
}

bool guard_has_keys(const struct guard *guard) {
    return guard->key_count > 0;
}

/* Copies the name of "name", "name:port" or "[address]:port", without the brackets. False when it is none. */
static bool host_name(const char *host, char name[256]) {
    const char *begin = host, *end;
    if (*host == '[') {
        begin++;
        end = strchr(begin, ']');
        if (end == NULL || (end[1] != 0 && end[1] != ':'))
            return false;
    } else {
        end = begin + strcspn(begin, ":");
    }
    size_t size = (size_t)(end - begin);
    const char *port = *end == ']' ? end + 1 : end;
    if (size == 0 || size > 255 || (*port == ':' && strspn(port + 1, "0123456789") != strlen(port + 1)))
        return false;
    memcpy(name, begin, size);
    name[size] = 0;
    if (size > 1 && name[size - 1] == '.')
        name[size - 1] = 0;
    return true;
}

static bool is_address(const char *name) {
    struct in_addr four;
    struct in6_addr six;
    return inet_pton(AF_INET, name, &four) == 1 || inet_pton(AF_INET6, name, &six) == 1;
}

static bool is_any_address(const char *name) {
    struct in6_addr six;
    return strcmp(name, "0.0.0.0") == 0 ||
           (inet_pton(AF_INET6, name, &six) == 1 && memcmp(&six, &in6addr_any, sizeof six) == 0);
}

bool host_is_loopback(const char *host) {
    struct in_addr four;
    struct in6_addr six;
    if (inet_pton(AF_INET, host, &four) == 1)
        return ntohl(four.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, host, &six) == 1)
        return memcmp(&six, &in6addr_loopback, sizeof six) == 0;
    return strcasecmp(host, "localhost") == 0;
}

bool guard_check_host(const struct guard *guard, const char *host, struct refusal *refusal) {
    const struct guard_options *options = &guard->options;
    char name[256];
    if (options->bound_host == NULL || host == NULL)
        return true;
    if (host_name(host, name)) {
        if (host_is_loopback(name) || strcasecmp(name, options->bound_host) == 0 ||
            (is_any_address(options->bound_host) && is_address(name)))
            return true;
        for (size_t i = 0; i < options->host_count; i++)
            if (strcasecmp(name, options->hosts[i]) == 0)
                return true;
    }
    *refusal = (struct refusal){.status = 403, .type = "invalid_request_error", .code = "host_not_allowed"};
    snprintf(refusal->message, sizeof refusal->message,
             "This server does not answer to the Host \"%.200s\"; calla serve --allow-host NAME lets it.",
             host);
    return false;
}

const char *guard_allowed_origin(const struct guard *guard, const char *origin) {
    for (size_t i = 0; origin != NULL && i < guard->options.origin_count; i++)
        if (strcmp(guard->options.origins[i], "*") == 0 || strcmp(guard->options.origins[i], origin) == 0)
            return guard->options.origins[i];
    return NULL;
}

bool guard_check_origin(const struct guard *guard, const char *origin, const char *host,
                        struct refusal *refusal) {
    if (origin == NULL || guard_allowed_origin(guard, origin) != NULL)
        return true;
    const char *own = strncmp(origin, "http://", 7) == 0    ? origin + 7
                      : strncmp(origin, "https://", 8) == 0 ? origin + 8
                                                            : NULL;
    if (own != NULL && host != NULL && strcasecmp(own, host) == 0)
        return true;
    *refusal = (struct refusal){.status = 403, .type = "invalid_request_error", .code = "origin_not_allowed"};
    snprintf(refusal->message, sizeof refusal->message,
             "Web pages of \"%.200s\" may not use this server; calla serve --cors ORIGIN lets them.", origin);
    return false;
}

bool guard_check_key(const struct guard *guard, const char *authorization, struct refusal *refusal) {
    if (!guard_has_keys(guard))
        return true;
    static const char scheme[] = "Bearer ";
    bool known = false;
    if (authorization != NULL && strncasecmp(authorization, scheme, sizeof scheme - 1) == 0) {
        const char *key = authorization + sizeof scheme - 1;
        key += strspn(key, " ");
        struct sha256 hash;
        unsigned char digest[32];
        sha256_start(&hash);
        sha256_add(&hash, key, strlen(key));
        sha256_finish(&hash, digest);
        for (size_t i = 0; i < guard->key_count; i++) {
            unsigned different = 0;
            for (size_t k = 0; k < sizeof digest; k++)
                different |= (unsigned)(digest[k] ^ guard->keys[i].digest[k]);
            known |= different == 0;
        }
    }
    if (known)
        return true;
    *refusal = (struct refusal){.status = 401, .type = "invalid_request_error", .code = "invalid_api_key"};
    snprintf(refusal->message, sizeof refusal->message,
             authorization == NULL ? "This server asks for an API key: send \"Authorization: Bearer KEY\"."
                                   : "The API key is not one of this server's.");
    return false;
}
