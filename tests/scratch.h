/* A folder of its own for a test that needs files. */
#ifndef CALLA_TESTS_SCRATCH_H
#define CALLA_TESTS_SCRATCH_H

#include <stddef.h>

/* A new empty folder under $TMPDIR or /tmp; scratch_remove deletes it with all that it holds and frees the
 * name. */
char *scratch_new(void);
void scratch_remove(char *folder);

/* Path of a name in it, on the heap. */
char *scratch_path(const char *folder, const char *name);

void scratch_write(const char *folder, const char *name, const void *bytes, size_t size);
void scratch_write_text(const char *folder, const char *name, const char *text);
void scratch_delete(const char *folder, const char *name);

/* A small config of the family (4 layers, 8 experts, 4-bit with 8-bit routers), all keys given. */
extern const char scratch_config[];

#endif
