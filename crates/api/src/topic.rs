//! Topics of queries, and the type of each answer.

use crate::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Error for requests about flow rules, in modes without them.
pub const NO_FLOW_RULES: &str =
    "only a switch has flow rules (mode = \"switch\"); to see a router's flows, use `bywash show flows`";

macro_rules! topics {
    ($($(#[doc = $doc:literal])+ $topic:ident = $name:literal: $answer:ty,)+) => {
        /// Topic of a query.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Topic { $($(#[doc = $doc])+ $topic,)+ }

        impl Topic {
            /// All topics.
            pub const ALL: &[Self] = &[$(Self::$topic),+];

            /// Returns the topic's name in paths.
            pub fn name(self) -> &'static str {
                match self { $(Self::$topic => $name,)+ }
            }

            /// Returns a description of the topic.
            pub fn about(self) -> &'static str {
                match self { $(Self::$topic => concat!($($doc),+).trim_ascii(),)+ }
            }

            /// Returns the JSON schema of the topic's answer.
            pub fn schema(self) -> Value {
                let title = format!("{} /v1/{}", self.method(), self.name());
                match self { $(Self::$topic => schema::<$answer>(&title),)+ }
            }
        }

        /// Answer to a query.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(untagged)]
        pub enum Answer { $($(#[doc = $doc])+ $topic($answer),)+ }

        impl Answer {
            /// Reads the answer to a query for `topic`. Errors if a field has another type than that answer's.
            pub fn read(topic: Topic, json: Value) -> serde_json::Result<Self> {
                Ok(match topic { $(Topic::$topic => Self::$topic(serde_json::from_value(json)?),)+ })
            }
        }

        $(
            impl OfTopic for $answer {
                const TOPIC: Topic = Topic::$topic;

                fn of(answer: Answer) -> Option<Self> {
                    if let Answer::$topic(answer) = answer { Some(answer) } else { None }
                }
            }

            impl From<$answer> for Answer {
                fn from(answer: $answer) -> Self {
                    Self::$topic(answer)
                }
            }
        )+
    };
}

/// Type of the answer to queries for one topic.
pub trait OfTopic: DeserializeOwned + Into<Answer> {
    /// Topic that has this answer.
    const TOPIC: Topic;

    /// Returns the contents of an answer; `None` if it is another topic's.
    fn of(answer: Answer) -> Option<Self>;
}

topics! {
    /// Ports, with their state and counters.
    Ports = "ports": Vec<Port>,
    /// Workers, with their load and the cycles of each stage.
    Workers = "workers": Vec<Worker>,
    /// Pools and their arena.
    Pools = "pools": Pools,
    /// Routes. With `?prefix=P`, only those that lie within P or cover it.
    Routes = "routes": Vec<Route>,
    /// Neighbours. With `?prefix=P`, only those within P.
    Neighbours = "neighbours": Vec<Neighbour>,
    /// Established flows of a router, at most 10,000 of them. With `?match=M`, those with all of these, separated by
    /// commas: `src=P` and `dst=P` (a prefix or address, before or after the translation), `port=N` (any of its ports),
    /// `proto=tcp` or `udp`; and `limit=N` of them, `after=NEXT` of the answer before. A part may have fewer flows than
    /// the limit: only a `next` of null ends the list.
    EstablishedFlows = "established-flows": EstablishedFlows,
    /// Table of a router's established flows: size, traffic, revocations.
    FlowTable = "flow-table": FlowTable,
    /// Connections that the kernel tracks, and why it forwards them itself: read, and the rules evaluated, on request.
    KernelConnections = "kernel-connections": KernelConnections,
    /// Drops, other events, and verdicts of the XDP programs. Counters that are zero are left out.
    Drops = "drops": Drops,
    /// Level of each port, and why.
    Placement = "placement": Vec<Placement>,
    /// Sandbox of all threads.
    Sandbox = "sandbox": Sandbox,
    /// Flows of a switch. With `?match=M`, only those that M selects.
    Flows = "flows": Vec<Flow>,
    /// Groups and meters of a switch.
    Groups = "groups": Groups,
    /// Addresses that a switch has learned.
    Fdb = "fdb": Vec<Address>,
    /// Flow caches of a switch.
    Caches = "caches": Caches,
    /// Modems of a cable downstream.
    Modems = "modems": Vec<Modem>,
    /// Addresses behind the modems of a cable downstream.
    Cpes = "cpes": Vec<Cpe>,
    /// Service flows of the modems of a cable downstream.
    ServiceFlows = "service-flows": Vec<ServiceFlow>,
    /// Channels of a cable downstream.
    Channels = "channels": Vec<Channel>,
    /// Configuration in effect. Its keys are those of the configuration file.
    Config = "config": Config,
    /// Differences between the kernel's tables, read afresh, and the router's.
    Drift = "drift": Vec<Drift>,
    /// Audit of all buffers, counted on request.
    Audit = "audit": Audit,
    /// Health. An error, with status 503, while a worker hangs, or waits for its restart after a panic, or after the
    /// broker has ended.
    Health = "health": Health,
}

impl Topic {
    /// Topics of `show all`, in their order.
    pub const SHOWN: [Topic; 19] = [
        Topic::Ports,
        Topic::Workers,
        Topic::Pools,
        Topic::Routes,
        Topic::Neighbours,
        Topic::EstablishedFlows,
        Topic::FlowTable,
        Topic::Drops,
        Topic::Placement,
        Topic::Sandbox,
        Topic::Flows,
        Topic::Groups,
        Topic::Fdb,
        Topic::Caches,
        Topic::Modems,
        Topic::Cpes,
        Topic::ServiceFlows,
        Topic::Channels,
        Topic::Config,
    ];

    /// Topics of an application on the development kit.
    pub const OF_APPLICATIONS: [Topic; 4] = [Topic::Ports, Topic::Workers, Topic::Pools, Topic::Drops];

    /// Returns the HTTP method of a query for the topic.
    pub fn method(self) -> &'static str {
        if self == Self::Audit { "POST" } else { "GET" }
    }

    /// Returns the name of the query parameter that filters the topic; `None` if it takes no filter.
    pub fn filter(self) -> Option<&'static str> {
        match self {
            Self::Routes | Self::Neighbours => Some("prefix"),
            Self::Flows | Self::EstablishedFlows => Some("match"),
            _ => None,
        }
    }

    /// Returns the name of the mode that has the topic; `None` if every mode has it.
    pub fn mode(self) -> Option<&'static str> {
        match self {
            Self::Routes
            | Self::Neighbours
            | Self::EstablishedFlows
            | Self::FlowTable
            | Self::KernelConnections
            | Self::Drift => Some("router"),
            Self::Flows | Self::Groups | Self::Fdb | Self::Caches => Some("switch"),
            Self::Modems | Self::Cpes | Self::ServiceFlows | Self::Channels => Some("cmts"),
            _ => None,
        }
    }

    /// Returns the error for a request to an instance whose mode does not have the topic.
    pub fn not_in(self, mode: &str) -> String {
        if (self, mode) == (Self::Flows, "router") {
            return NO_FLOW_RULES.into();
        }
        let has = self.mode().map_or(String::new(), |of| format!(", but for a {of}"));
        format!("`{}` is not for a {mode}{has}: `bywash show all` shows what there is", self.name())
    }
}
