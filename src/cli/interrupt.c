#include "cli/interrupt.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t pressed;

static void press(int signal_number) {
    (void)signal_number;
    pressed = 1;
}

void interrupt_arm(void) {
    pressed = 0;
    /* SA_RESETHAND puts the default action back once the handler has run: the second Ctrl-C kills. */
    struct sigaction action = {.sa_handler = press, .sa_flags = SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

void interrupt_disarm(void) {
    signal(SIGINT, SIG_DFL);
}

bool interrupted(void) {
    return pressed != 0;
}
