// Decodes configurations of kube-scheduler with the types of the versions that understood them, as strictly as
// kube-scheduler does, and prints them as JSON: Policy, v1beta1 and v1beta2 as Kubernetes 1.22, v1beta3 and v1 as 1.25.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	policy "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kube-scheduler/config/v1beta1"
	"k8s.io/kube-scheduler/config/v1beta2"
	v1 "newer/kube-scheduler/config/v1"
	"newer/kube-scheduler/config/v1beta3"
)

func main() {
	if err := printAll(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func printAll(files []string) error {
	scheme := runtime.NewScheme()
	adders := runtime.NewSchemeBuilder(
		policy.AddToScheme, v1beta1.AddToScheme, v1beta2.AddToScheme, v1beta3.AddToScheme, v1.AddToScheme)
	if err := adders.AddToScheme(scheme); err != nil {
		return err
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		object, _, err := decoder.Decode(data, nil, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := json.NewEncoder(os.Stdout).Encode(object); err != nil {
			return err
		}
	}
	return nil
}
