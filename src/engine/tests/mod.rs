//! The rules of the engine, one by one and with random inputs.

mod analysis;
mod approvals;
mod asking;
mod asking_users;
mod assembly;
mod budget;
mod context;
mod durability;
mod guards;
mod model_failures;
mod offer;
mod plan;
mod prompt;
mod properties;
mod recovery;
mod requests;
mod rounds;
mod structured;
mod table;
mod turns;
mod undoing;
mod world;
