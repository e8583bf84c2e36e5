package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"
)

const chart = "../helm/parley"

// render renders the chart with these values and returns its documents by kind and name.
func render(values string) (map[string]string, error) {
	loaded, err := loader.LoadDir(chart)
	if err != nil {
		return nil, err
	}
	given := map[string]any{}
	if err := yaml.Unmarshal([]byte(values), &given); err != nil {
		return nil, err
	}
	release := common.ReleaseOptions{Name: "parley", Namespace: "default", Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(loaded, given, release, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(loaded, all)
	if err != nil {
		return nil, err
	}
	documents := map[string]string{}
	for _, text := range files {
		for document := range strings.SplitSeq(text, "\n---\n") {
			var head struct {
				Kind     string
				Metadata struct{ Name string }
			}
			if err := yaml.Unmarshal([]byte(document), &head); err != nil {
				return nil, err
			}
			if head.Kind != "" {
				documents[head.Kind+"/"+head.Metadata.Name] = document
			}
		}
	}
	return documents, nil
}

// decode decodes a document as the API server does: an unknown or doubled field is an error.
func decode(t *testing.T, name, document string) any {
	t.Helper()
	kind, _, _ := strings.Cut(name, "/")
	types := map[string]any{
		"StatefulSet": &appsv1.StatefulSet{}, "Service": &corev1.Service{}, "ConfigMap": &corev1.ConfigMap{},
		"ServiceMonitor": &monitoringv1.ServiceMonitor{}, "NetworkPolicy": &networkingv1.NetworkPolicy{},
	}
	target, ok := types[kind]
	if !ok {
		t.Fatalf("the chart has a %s, want one of the types of this test", kind)
	}
	if err := yaml.UnmarshalStrict([]byte(document), target); err != nil {
		t.Errorf("%s: %v\n%s", name, err, document)
	}
	return target
}

const allValues = `
image: {repository: registry.example/parleyd, tag: v1, pullPolicy: Always}
imagePullSecrets: [{name: pull}]
config: {max_turns: 64, agents: {writer: {kind: anthropic, model: claude, api_key_env: ANTHROPIC_API_KEY}}}
tls: {secretName: parley-tls, clientCAKey: ca.crt}
auth: {tokensSecretName: parley-tokens}
envSecretName: parley-env
extraEnv: [{name: PARLEY_TTL, value: 7d}]
extraVolumes: [{name: authority, configMap: {name: authority}}]
extraVolumeMounts: [{name: authority, mountPath: /etc/authority}]
persistence: {size: 100Gi, storageClassName: fast, annotations: {a: b}}
stopGraceSeconds: 60
service: {type: LoadBalancer, annotations: {a: b}, grpcPort: 443}
metrics:
  serviceMonitor:
    {enabled: true, labels: {release: prometheus}, tokenSecretName: parley-reader,
     tlsConfig: {ca: {secret: {name: authority, key: ca.crt}}}}
networkPolicy: {enabled: true, from: [{podSelector: {matchLabels: {app: agents}}}]}
podAnnotations: {a: b}
podLabels: {c: d}
nodeSelector: {disk: ssd}
tolerations: [{key: store, operator: Exists}]
affinity: {nodeAffinity: {}}
`

// TestChart renders the chart and decodes what it creates.
func TestChart(t *testing.T) {
	always := []string{"ConfigMap/parley", "Service/parley", "Service/parley-pods", "StatefulSet/parley"}
	for values, want := range map[string][]string{
		"insecure: true": always,
		allValues: {
			"ConfigMap/parley", "NetworkPolicy/parley", "Service/parley", "Service/parley-pods", "ServiceMonitor/parley",
			"StatefulSet/parley",
		},
	} {
		documents, err := render(values)
		if err != nil {
			t.Errorf("render(%s) = %v", values, err)
			continue
		}
		if got := slices.Sorted(maps.Keys(documents)); !slices.Equal(got, want) {
			t.Errorf("render(%s) creates %q, want %q", values, got, want)
		}
		for name, document := range documents {
			switch decoded := decode(t, name, document).(type) {
			case *appsv1.StatefulSet:
				checkStatefulSet(t, decoded)
			case *monitoringv1.ServiceMonitor:
				checkServiceMonitor(t, decoded, "authority")
			}
		}
	}
}

// TestChartMonitor: the Secret of the certificate need not contain its authority, as one of kubectl create secret tls.
// The operator refuses a ServiceMonitor with a missing key, also if that is optional.
func TestChartMonitor(t *testing.T) {
	const name = "ServiceMonitor/parley"
	documents, err := render("tls: {secretName: parley-tls}\nmetrics: {serviceMonitor: {enabled: true}}")
	if err != nil {
		t.Fatal(err)
	}
	if monitor, ok := decode(t, name, documents[name]).(*monitoringv1.ServiceMonitor); ok {
		checkServiceMonitor(t, monitor, "")
	}
}

// checkServiceMonitor checks that Prometheus verifies the server with the authority of a Secret. If that is empty, it
// uses those of its system.
func checkServiceMonitor(t *testing.T, monitor *monitoringv1.ServiceMonitor, authority string) {
	t.Helper()
	endpoint := monitor.Spec.Endpoints[0]
	if tls := endpoint.TLSConfig; tls == nil || *tls.ServerName != "parley" {
		t.Errorf("tlsConfig = %v, want the server name parley", tls)
	} else if secret := tls.CA.Secret; (secret == nil) != (authority == "") || secret != nil && secret.Name != authority {
		t.Errorf("authority in %v, want the Secret %q", secret, authority)
	}
}

// checkStatefulSet checks what Kubernetes accepts but the server needs otherwise.
func checkStatefulSet(t *testing.T, set *appsv1.StatefulSet) {
	t.Helper()
	pod := set.Spec.Template.Spec
	container := pod.Containers[0]
	variables := map[string]string{}
	for _, v := range container.Env {
		variables[v.Name] = v.Value
	}
	if got := *set.Spec.Replicas; got != 1 {
		t.Errorf("replicas = %d, want 1", got)
	}
	if got := set.Spec.PodManagementPolicy; got != appsv1.ParallelPodManagement {
		t.Errorf("podManagementPolicy = %q, want one that replaces a pod that is not ready", got)
	}
	// A stop takes the grace period and 5 s.
	if got := fmt.Sprintf("%ds", *pod.TerminationGracePeriodSeconds-10); got != variables["PARLEY_STOP_GRACE"] {
		t.Errorf("terminationGracePeriodSeconds − 10 = %s, want PARLEY_STOP_GRACE, %s", got, variables["PARLEY_STOP_GRACE"])
	}
	mounted := map[string]string{}
	for _, mount := range container.VolumeMounts {
		mounted[mount.Name] = mount.MountPath
	}
	for _, volume := range pod.Volumes {
		if secret := volume.Secret; secret != nil && *secret.DefaultMode != 0o400 {
			t.Errorf("mode of the secret %s = %o, want 0400", volume.Name, *secret.DefaultMode)
		}
		if mounted[volume.Name] == "" {
			t.Errorf("volume %s is not mounted", volume.Name)
		}
	}
	for _, name := range []string{"PARLEY_TLS_CERT_FILE", "PARLEY_TLS_CLIENT_CA_FILE", "PARLEY_AUTH_TOKEN_FILE"} {
		path := variables[name]
		in := func(volume string) bool { return strings.HasPrefix(path, mounted[volume]+"/") }
		if path != "" && !in("tls") && !in("auth") {
			t.Errorf("%s = %s, want a file of a secret", name, path)
		}
	}
	security := container.SecurityContext
	if !*security.ReadOnlyRootFilesystem || *security.AllowPrivilegeEscalation || !*pod.SecurityContext.RunAsNonRoot {
		t.Errorf("security context = %v, want a read-only file system and no privileges", security)
	}
}

// TestChartFaults checks that wrong values are refused with the name of the value.
func TestChartFaults(t *testing.T) {
	for values, want := range map[string]string{
		"":                                    "set tls.secretName, and auth.tokensSecretName",
		"insecure: true\nreplicas: 2":         "'replicas' not allowed",
		"insecure: true\nnameOverride: store": "'nameOverride' not allowed",
		"insecure: 1":                         "/insecure",
		"insecure: true\nstopGraceSeconds: x": "/stopGraceSeconds",
		"insecure: true\ntls: {clientCAKey: ca.crt}": "tls.clientCAKey needs tls.secretName",
	} {
		if documents, err := render(values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("render(%q) = %d documents, error %v; want %q in the error", values, len(documents), err, want)
		}
	}
}
