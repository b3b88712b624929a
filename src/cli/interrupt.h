/* Ctrl-C: the first one asks for an orderly end, the second one ends the program at once. */
#ifndef CALLA_CLI_INTERRUPT_H
#define CALLA_CLI_INTERRUPT_H

#include <stdbool.h>

/* From here on the next Ctrl-C sets the flag instead of ending the program. Clears the flag. */
void interrupt_arm(void);

/* Ctrl-C ends the program again. The flag stays. */
void interrupt_disarm(void);

/* Whether Ctrl-C was pressed since interrupt_arm. */
bool interrupted(void);

#endif
