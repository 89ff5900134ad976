// A peer with Go's TLS: a client that sends what it is given and prints what comes back, or a server of one connection that sends
// all of it back.
//
// usage: tls_peer client PORT VERSION CA
//
//	tls_peer server PORT VERSION CERTIFICATE KEY
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"os"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	role, address := os.Args[1], "127.0.0.1:"+os.Args[2]
	version := map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}[os.Args[3]]
	config := &tls.Config{MinVersion: version, MaxVersion: version, ServerName: "a.example"}
	if role == "client" {
		pem, err := os.ReadFile(os.Args[4])
		check(err)
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(pem)
		connection, err := tls.Dial("tcp", address, config)
		check(err)
		go func() {
			_, err := io.Copy(connection, os.Stdin)
			check(err)
			check(connection.CloseWrite())
		}()
		_, err = io.Copy(os.Stdout, connection)
		check(err)
		return
	}
	pair, err := tls.LoadX509KeyPair(os.Args[4], os.Args[5])
	check(err)
	config.Certificates = []tls.Certificate{pair}
	listener, err := tls.Listen("tcp", address, config)
	check(err)
	connection, err := listener.Accept()
	check(err)
	_, err = io.Copy(connection, connection)
	check(err)
	check(connection.Close())
}
