#include "cli/interrupt.h"

#include <signal.h>
#include <stddef.h>

static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
#define SIGNALS (sizeof signals / sizeof *signals)

static volatile sig_atomic_t noted;

static void note(int signal_number) {
    noted = signal_number;
}

static void (*handler_of(int signal_number))(int) {
    struct sigaction action;
    return sigaction(signal_number, NULL, &action) == 0 ? action.sa_handler : SIG_DFL;
}

void interrupt_arm(void) {
    noted = 0;
    /* SA_RESETHAND puts the default action back once the handler has run. */
    struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < SIGNALS; i++)
        if (signals[i] == SIGINT || handler_of(signals[i]) != SIG_IGN) /* as nohup leaves SIGHUP */
            sigaction(signals[i], &action, NULL);
}

void interrupt_disarm(void) {
    for (size_t i = 0; i < SIGNALS; i++)
        if (handler_of(signals[i]) == note)
            signal(signals[i], SIG_DFL);
}

int interrupt_signal(void) {
    return noted;
}
