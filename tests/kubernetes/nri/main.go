// A container runtime as far as NRI goes: containerd's own side of it, asked what becomes of containers.
//
//	nri SOCKET
//
// It listens at SOCKET for plugins, and writes "synchronized" when it begins and when one has come. Then it reads containers that are to be created
// from standard input, a line of JSON for each (CreateContainerRequest of NRI's api.proto), and answers each with the
// adjustment that came of it, in one line as well.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/encoding/protojson"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(socket string) error {
	running := &api.PodSandbox{Id: "earlier", Name: "earlier", Namespace: "default"}
	synchronize := func(ctx context.Context, tell adaptation.SyncCB) error {
		_, err := tell(ctx, []*api.PodSandbox{running}, []*api.Container{{Id: "c", PodSandboxId: "earlier"}})
		fmt.Println("synchronized")
		return err
	}
	update := func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil }
	runtime, err := adaptation.New("trial", "1", synchronize, update,
		adaptation.WithSocketPath(socket),
		adaptation.WithPluginPath("/nonexistent"),
		adaptation.WithPluginConfigPath("/nonexistent"))
	if err != nil {
		return err
	}
	if err := runtime.Start(); err != nil {
		return err
	}
	defer runtime.Stop()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if err := create(runtime, lines.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

func create(runtime *adaptation.Adaptation, line []byte) error {
	request := &api.CreateContainerRequest{}
	if err := protojson.Unmarshal(line, request); err != nil {
		return err
	}
	// As runtimes do: a plugin that has just come is asked as well.
	block := runtime.BlockPluginSync()
	defer block.Unblock()
	response, err := runtime.CreateContainer(context.Background(), request)
	if err != nil {
		return err
	}
	adjust, err := protojson.Marshal(response.GetAdjust())
	if err != nil {
		return err
	}
	fmt.Println("adjusted", string(adjust))
	return nil
}
