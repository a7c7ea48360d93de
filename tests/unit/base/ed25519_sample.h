/* The key pairs and signatures of RFC 8032, section 7.1, and a key file made of such a secret. */
#ifndef ED25519_SAMPLE_H
#define ED25519_SAMPLE_H

#include "base/file.h"

#include <openssl/evp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct ed25519_sample {
    const char *seed, *pub, *message, *sig; /* hexadecimal */
};

static const struct ed25519_sample ed25519_samples[] = {
    {"9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
     "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
     "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24"
     "655141438e7a100b"},
    {"4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
     "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
     "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aee"
     "b00d291612bb0c00"},
    {"c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
     "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "af82",
     "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28d"
     "c027beceea1ec40a"},
    {"833fe62409237b9d62ec77587520911e9a759cec1d19755b7da901b96dca3d42",
     "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
     "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e"
     "2a9ac94fa54ca49f",
     "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17a"
     "d9bef1177331a704"},
};
enum { N_ED25519_SAMPLES = sizeof ed25519_samples / sizeof ed25519_samples[0] };

/* Returns the number of bytes. */
static inline size_t ed25519_sample_hex(const char *hex, uint8_t *out) {
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned byte = 0;
        sscanf(hex + 2 * i, "%2x", &byte);
        out[i] = (uint8_t)byte;
    }
    return n;
}

/* The PKCS #8 file of a sample's secret (RFC 8410), as any tool would write it. */
static inline void ed25519_sample_save(const struct ed25519_sample *s, const char *path, mode_t mode) {
    static const uint8_t head[] = {0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20};
    uint8_t der[sizeof head + 32];
    char base64[80];
    FILE *f = fopen(path, "w");
    memcpy(der, head, sizeof head);
    ed25519_sample_hex(s->seed, der + sizeof head);
    EVP_EncodeBlock((unsigned char *)base64, der, sizeof der);
    if (!f) {
        perror(path);
        return;
    }
    fprintf(f, "-----BEGIN PRIVATE KEY-----\n%s\n-----END PRIVATE KEY-----\n", base64);
    fclose(f);
    chmod(path, mode);
}

#endif
