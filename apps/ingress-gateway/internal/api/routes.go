package api

// Route is one row of the API: what the router, the metrics and the OpenAPI test
// know of it.
type Route struct {
	Method  string
	Pattern string   // segments in braces are parameters
	Query   []string // the parameters that it takes; others are refused
	// Mutating routes carry applied in their problems.
	Mutating bool
	// Body tells whether the route takes one; on others a body is refused.
	Body bool
	// NoStore forbids caches to keep the answer.
	NoStore bool
	// AnySite lifts the cross-site rule.
	AnySite bool
	// Feature names what is not built yet: the route answers 501.
	Feature string

	handle     func(*call) error
	topicParam bool // the first parameter is a topic's name
	index      int
}

// The features of later issues that answer 501.
const (
	featureSchema      = "schema"
	featureDeadLetters = "dead_letters"
	featurePosition    = "position"
	featureUsers       = "users"
)

// Routes returns the table of all routes, in the order of api.md.
func Routes() []Route {
	routes := append(topicRoutes(), messageRoutes()...)
	routes = append(routes, clusterRoutes()...)
	routes = append(routes, laterRoutes()...)
	for i := range routes {
		routes[i].index = i
		routes[i].topicParam = hasTopicParam(routes[i].Pattern)
	}
	return routes
}

func topicRoutes() []Route {
	return []Route{
		{Method: "POST", Pattern: "/v1/topics", Mutating: true, Body: true, handle: (*call).createTopic},
		{Method: "GET", Pattern: "/v1/topics", Query: []string{"limit", "prefix", "page_token"}, handle: (*call).listTopics},
		{Method: "GET", Pattern: "/v1/topics/{topic}", handle: (*call).getTopic},
		{Method: "PATCH", Pattern: "/v1/topics/{topic}", Mutating: true, Body: true, handle: (*call).patchTopic},
		{Method: "DELETE", Pattern: "/v1/topics/{topic}", Mutating: true, handle: (*call).deleteTopic},
		{Method: "POST", Pattern: "/v1/topics/{topic}/children", Mutating: true, Body: true, handle: (*call).attachChild},
		{Method: "GET", Pattern: "/v1/topics/{topic}/children", handle: (*call).listChildren},
		{Method: "DELETE", Pattern: "/v1/topics/{topic}/children/{child}", Mutating: true, handle: (*call).detachChild},
	}
}

func messageRoutes() []Route {
	consume := []string{"wait", "max", "max_bytes", "partition", "visibility_timeout_ms", "encoding"}
	return []Route{
		{Method: "POST", Pattern: "/v1/topics/{topic}/produce", Mutating: true, Body: true, Query: []string{"key", "partition", "ack", "timeout", "incarnation"}, handle: (*call).produce},
		{Method: "POST", Pattern: "/v1/topics/{topic}/produce/batch", Mutating: true, Body: true, Query: []string{"ack", "timeout"}, handle: (*call).produceBatch},
		{Method: "POST", Pattern: "/v1/topics/{topic}/consume", NoStore: true, Query: consume, handle: (*call).consume},
		{Method: "GET", Pattern: "/v1/topics/{topic}/consume", NoStore: true, Query: consume, handle: (*call).consume},
		{Method: "POST", Pattern: "/v1/topics/{topic}/ack", Mutating: true, NoStore: true, Body: true, Query: []string{"receipt_handle"}, handle: (*call).ack},
		{Method: "POST", Pattern: "/v1/topics/{topic}/extend", Mutating: true, NoStore: true, Body: true, Query: []string{"receipt_handle", "visibility_timeout_ms"}, handle: (*call).extend},
		{Method: "POST", Pattern: "/v1/topics/{topic}/nack", Mutating: true, NoStore: true, Body: true, Query: []string{"receipt_handle", "delay_ms"}, handle: (*call).nack},
		{Method: "GET", Pattern: "/v1/topics/{topic}/messages", NoStore: true, Query: []string{"partition", "offset", "since", "limit", "max_bytes", "incarnation", "encoding", "confirmed"}, handle: (*call).replay},
	}
}

func clusterRoutes() []Route {
	return []Route{
		{Method: "GET", Pattern: "/v1/cluster/members", handle: (*call).listMembers},
		{Method: "GET", Pattern: "/v1/cluster/members/{id}", handle: (*call).getMember},
		{Method: "GET", Pattern: "/v1/cluster/quorum", handle: (*call).quorum},
		{Method: "POST", Pattern: "/v1/cluster/members/{id}/forget", Mutating: true, handle: (*call).forgetMember},
		{Method: "POST", Pattern: "/v1/cluster/members/{id}/decommission", Mutating: true, Query: []string{"dry_run", "accept_data_loss"}, handle: (*call).decommission},
		{Method: "DELETE", Pattern: "/v1/cluster/members/{id}/decommission", Mutating: true, handle: (*call).cancelDecommission},
		{Method: "POST", Pattern: "/v1/topics/{topic}/partitions/{partition}/reset", Mutating: true, Query: []string{"accept_data_loss"}, handle: (*call).resetPartition},
		{Method: "GET", Pattern: "/v1/cluster/moves", handle: (*call).listMoves},
		{Method: "POST", Pattern: "/v1/cluster/moves", Mutating: true, Body: true, handle: (*call).startMove},
		{Method: "DELETE", Pattern: "/v1/cluster/moves/{topic}/{partition}", Mutating: true, Query: []string{"started_at"}, handle: (*call).abortMove},
		{Method: "GET", Pattern: "/v1/cluster/status", handle: (*call).status},
		{Method: "GET", Pattern: "/v1/cluster/backup", NoStore: true, handle: (*call).backup},
		{Method: "GET", Pattern: "/v1/info", AnySite: true, handle: (*call).info},
		{Method: "GET", Pattern: "/v1/openapi.yaml", handle: (*call).openapi},
	}
}

// laterRoutes are known and answer 501 until their issue comes.
func laterRoutes() []Route {
	return []Route{
		{Method: "POST", Pattern: "/v1/topics/{topic}/position", Mutating: true, Body: true, Feature: featurePosition},
		{Method: "GET", Pattern: "/v1/users", Feature: featureUsers},
		{Method: "POST", Pattern: "/v1/users", Mutating: true, Body: true, Feature: featureUsers},
	}
}
