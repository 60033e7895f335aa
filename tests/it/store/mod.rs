//! The contract of the store: each story is told to both backends, by the same code.

/// Makes two tests of each story, `story::sqlite` and `story::postgres`. A database that cannot be reached fails its test.
macro_rules! contract {
    ($($story:ident,)*) => {
        $(
            mod $story {
                use crate::store::fixture::World;
                use crate::support::database::Kind;

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
mod cancel;
mod caps;
mod claims;
mod conversations;
mod fixture;
mod input;
mod keys;
mod leases;
mod load;
mod log;
mod postgres;
mod sqlite_file;
mod tickets;
