/* Ctrl-C, and the signals that end a program when the system stops or a terminal is closed (SIGTERM, SIGHUP):
 * the first one asks for an orderly end, a second one of the same kind ends the program at once. */
#ifndef CALLA_CLI_INTERRUPT_H
#define CALLA_CLI_INTERRUPT_H

#include <stdbool.h>

/* From here on the next such signal is noted instead of ending the program. Forgets what was noted. */
void interrupt_arm(void);

/* The signals end the program again. What was noted stays. */
void interrupt_disarm(void);

/* The signal that came since interrupt_arm; 0: none. */
int interrupt_signal(void);

static inline bool interrupted(void) {
    return interrupt_signal() != 0;
}

#endif
