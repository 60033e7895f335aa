//! The rules of the engine, one by one and with random inputs.

mod analysis;
mod assembly;
mod budget;
mod calls;
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
mod world;
