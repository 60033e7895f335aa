//! The contract of the store: each test runs on both databases with the same code. It also runs on the model store of the
//! simulation, so that simulation results apply to the databases.

/// Creates a test of each contract on each store: `story::sqlite`, `story::postgres`, and `on_the_model::story`. A database
/// that cannot be reached fails its test. Tests after the semicolon do not run on the model: they query the database, or use
/// features that the model lacks.
macro_rules! contract {
    ($($story:ident,)* $(; $($of_databases:ident,)*)?) => {
        contract!(@databases $($story,)* $($($of_databases,)*)?);

        mod on_the_model {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $story() {
                    super::$story(&crate::fixture::World::on_the_model().await).await;
                }
            )*
        }
    };
    (@databases $($story:ident,)*) => {
        $(
            mod $story {
                use crate::fixture::World;
                use support::database::Kind;

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn sqlite() {
                    let world = World::new(Kind::Sqlite).await;
                    super::$story(&world).await;
                    world.store.close().await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn postgres() {
                    let world = World::new(Kind::Postgres).await;
                    super::$story(&world).await;
                    world.store.close().await;
                }
            }
        )*
    };
}

mod accept;
mod agents;
mod appends;
mod audit;
mod budget;
mod cancel;
mod caps;
mod claims;
mod conversations;
mod copies;
mod explain;
mod feedback;
mod files;
mod fixture;
mod input;
mod keys;
mod leases;
mod load;
mod log;
mod mcp_logins;
mod mcp_servers;
mod migrations;
mod model_limitations;
mod owners;
mod postgres;
mod providers;
mod retention;
mod retries;
mod rewinding;
mod run_lists;
mod search;
mod sessions;
mod shares;
mod sqlite_file;
mod statements;
mod step_requests;
mod tickets;
mod titles;
mod tool_reviews;
mod tool_sets;
mod usage;
mod users;
mod years;
