/* cmocka with what it needs included first. */
#ifndef CALLA_TESTS_UNIT_H
#define CALLA_TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#endif
