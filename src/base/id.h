/* 128-bit identifiers, random but for those of a time: data ids, node ids, session ids. Text form: 32
 * lower-case hex digits. */
#pragma once

#include "base/slice.h"

struct id128 {
    uint8_t b[16];
};

#define ID_TEXT_SIZE 33

void id_new(struct id128 *ret);
/* One that comes behind those of earlier times, as bytes and as text; half of it is random. */
void id_new_at(uint64_t ns, struct id128 *ret);
bool id_eq(struct id128 a, struct id128 b);
bool id_is_zero(struct id128 a);
void id_text(struct id128 id, char ret_text[ID_TEXT_SIZE]);
int id_parse(struct slice text, struct id128 *ret);
