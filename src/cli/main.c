/* The command line: finds the command and hands over. */
#include <stdio.h>

#include "calla.h"

int main(int argc, char **argv) {
    (void)argc, (void)argv;
    fputs("usage: calla COMMAND [OPTIONS]\n", stderr);
    return 2;
}
