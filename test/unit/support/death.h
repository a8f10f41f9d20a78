/* Whether a piece of code aborts: it runs in a child of its own, whose stderr is thrown away. */
#pragma once

#include "base/macro.h"

bool death_aborts(void (*fn)(void *arg), void *arg);
