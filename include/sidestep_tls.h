/* What a program can ask about TLS that it has by an operator's rule of Sidestep, and how it begins TLS in the middle of a
 * connection.
 *
 * The program itself has no TLS: it reads and writes plain text, and the gateway of its host protects the connection. This
 * header needs no library. Where the program does not run under Sidestep, the kernel answers with ENOPROTOOPT.
 *
 *     struct sidestep_tls tls;
 *     if (sidestep_tls_status(fd, &tls) == 0 && tls.state == SIDESTEP_TLS_PROTECTED)
 *         printf("TLS by rule %s, the peer is %s\n", tls.rule, tls.subject);
 *
 * A program of a protocol with STARTTLS begins TLS where a rule says controlled = true, once both ends have agreed on it:
 *
 *     write(fd, "220 go ahead\r\n", 14);
 *     if (sidestep_tls_start(fd) != 0)
 *         close(fd);
 *
 * Whatever its own buffers have from before, behind the command of the peer, may be anybody's: it has to drop that.
 *
 * docs/tls.md#what-a-program-can-ask and docs/tls.md#a-program-that-begins-tls have the errors.
 */
#ifndef SIDESTEP_TLS_H
#define SIDESTEP_TLS_H

#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>

/* The option, of level IPPROTO_TCP. */
#define SIDESTEP_TLS_STATUS 0x53544C53
/* Set, it begins TLS, if the value is this number. */
#define SIDESTEP_TLS_START 1

enum {
    /* No rule has the connection: its bytes go as the program writes them. */
    SIDESTEP_TLS_UNPROTECTED = 0,
    /* The handshake goes on. No byte of the program has left yet, and none does before it is over. */
    SIDESTEP_TLS_HANDSHAKE = 1,
    /* TLS protects it. */
    SIDESTEP_TLS_PROTECTED = 2,
    /* By the rules of both ends its bytes stay in the memory of this host, without TLS. */
    SIDESTEP_TLS_WITHIN_HOST = 3,
    /* Its bytes go as the program writes them, until it begins TLS. */
    SIDESTEP_TLS_NOT_BEGUN = 4
};

/* What is not known is zero. */
struct sidestep_tls {
    /* One of the constants above. */
    uint8_t state;
    /* 1: the keys come from an earlier connection. */
    uint8_t is_resumed;
    /* As TLS writes it: {3, 3} is TLS 1.2, {3, 4} is TLS 1.3. */
    uint8_t version[2];
    /* As IANA writes it: {0x13, 0x02} is TLS_AES_256_GCM_SHA384. */
    uint8_t cipher[2];
    /* The name of the rule. */
    char rule[34];
    /* 1: the peer has shown a certificate, which was verified. */
    uint8_t has_certificate;
    uint8_t reserved[3];
    /* The SHA-256 fingerprint of that certificate. */
    uint8_t sha256[32];
    /* Its subject, such as "C=DE, CN=a.example"; a longer one is cut off. */
    char subject[256];
};

typedef char sidestep_tls_has_332_bytes[sizeof(struct sidestep_tls) == 332 ? 1 : -1];

/* 0, or -1 with errno. */
static inline int sidestep_tls_status(int fd, struct sidestep_tls *tls)
{
    socklen_t len = sizeof *tls;
    return getsockopt(fd, IPPROTO_TCP, SIDESTEP_TLS_STATUS, tls, &len);
}

/* 0: what was written before goes in plain text, and what is written from here on by TLS. Otherwise -1 with errno. */
static inline int sidestep_tls_start(int fd)
{
    int start = SIDESTEP_TLS_START;
    return setsockopt(fd, IPPROTO_TCP, SIDESTEP_TLS_STATUS, &start, sizeof start);
}

#endif
