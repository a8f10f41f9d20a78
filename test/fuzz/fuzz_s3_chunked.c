/*
 * Fuzz target: aws-chunked bodies. The first byte says of which kind: signed ('c'), signed with a signed
 * trailer ('t'), not signed with a trailer ('u').
 */
#include "body_pieces.h"
#include "s3/s3_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const struct chunked_signing signing = {
        .time = "20130524T000000Z", .scope = "20130524/us-east-1/s3/aws4_request", .previous = "seed"};
    const bool has_trailer = n > 0 && data[0] != 'c';
    const struct body_plan plan = {.size_bytes = BODY_SIZE_UNKNOWN,
                                   .aws_chunked = true,
                                   .chunks_signed = n > 0 && data[0] != 'u',
                                   .has_trailer = has_trailer,
                                   .kind = has_trailer ? CHECKSUM_CRC32 : CHECKSUM_NONE,
                                   .in_trailer = has_trailer};

    if (n > 0 && (data[0] == 'c' || data[0] == 't' || data[0] == 'u'))
        body(&plan, plan.chunks_signed ? &signing : NULL, slice_of(data + 1, n - 1));
    return 0;
}
