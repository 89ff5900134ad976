/* Asks about TLS on its connection, before the first byte and behind one of the peer's.
 *
 * usage: tls_status client|server PORT
 *
 * It writes a line, reads one byte, and says what it was told each time: an errno, or state, version, cipher suite, rule,
 * fingerprint and subject.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sidestep_tls.h"

static void tell(int fd)
{
    struct sidestep_tls tls;
    if (sidestep_tls_status(fd, &tls) != 0) {
        printf("errno %d\n", errno);
    } else {
        printf("state %d version %d.%d cipher %02X%02X rule '%s' sha256 ", tls.state, tls.version[0], tls.version[1],
               tls.cipher[0], tls.cipher[1], tls.rule);
        for (unsigned at = 0; at < sizeof tls.sha256; at++)
            printf("%02X", tls.sha256[at]);
        printf(" subject '%s'\n", tls.has_certificate ? tls.subject : "none");
    }
    fflush(stdout);
}

/* A value that does not fit is cut off, and a pointer to nowhere is refused. */
static void tell_of_limits(int fd)
{
    unsigned char bytes[8] = {0};
    socklen_t len = 4;
    int cut = getsockopt(fd, IPPROTO_TCP, SIDESTEP_TLS_STATUS, bytes, &len);
    int is_cut = cut == 0 && len == 4 && bytes[4] == 0;
    len = sizeof bytes;
    int refused = getsockopt(fd, IPPROTO_TCP, SIDESTEP_TLS_STATUS, (void *)8, &len);
    printf("limits %d %d\n", is_cut, refused == -1 && errno == EFAULT);
    fflush(stdout);
}

static int connected(int is_client, int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (is_client)
        return connect(fd, (struct sockaddr *)&address, sizeof address) == 0 ? fd : -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 1) != 0)
        return -1;
    puts("listens");
    fflush(stdout);
    return accept(fd, NULL, NULL);
}

int main(int argc, char **argv)
{
    char byte;
    if (argc != 3)
        return 2;
    int fd = connected(strcmp(argv[1], "client") == 0, atoi(argv[2]));
    if (fd < 0)
        return 1;
    tell(fd);
    if (write(fd, "hello\n", 6) != 6 || read(fd, &byte, 1) != 1)
        return 1;
    tell(fd);
    tell_of_limits(fd);
    return 0;
}
