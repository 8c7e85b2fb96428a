// Package main is all of Kubernetes that the stories need, in one executable.
//
// One link instead of eight saves most of the build's time and disk. Which program it is, a call says by the name it
// came under (a symbolic link `kubectl` is kubectl) or, called by any other name, by its first argument.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/coredns/coredns/coremain"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlerrors "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kubeproxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	// Plugins and metrics register themselves.
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

func main() {
	program := filepath.Base(os.Args[0])
	if code, known := run(program); known {
		os.Exit(code)
	}
	if len(os.Args) < 2 {
		fmt.Fprintf(os.Stderr, "%s: the first argument says which program to be\n", program)
		os.Exit(2)
	}
	os.Args = os.Args[1:]
	code, known := run(os.Args[0])
	if !known {
		fmt.Fprintf(os.Stderr, "%s is no program in here\n", os.Args[0])
		os.Exit(2)
	}
	os.Exit(code)
}

// run is the named program from start to end, with its exit status; false: there is none of that name.
func run(program string) (int, bool) {
	switch program {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		return cli.Run(app.NewAPIServerCommand()), true
	case "kube-controller-manager":
		return cli.Run(controllermanager.NewControllerManagerCommand()), true
	case "kube-scheduler":
		return cli.Run(scheduler.NewSchedulerCommand()), true
	case "kube-proxy":
		return cli.Run(kubeproxy.NewProxyCommand()), true
	case "kubelet":
		return cli.Run(kubelet.NewKubeletCommand(context.Background())), true
	case "kubectl":
		kubectlerrors.CheckErr(cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()))
	case "coredns":
		coremain.Run()
	default:
		return 0, false
	}
	return 0, true
}
