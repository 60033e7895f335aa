-- Limitations of models, learned from refusals of their providers.

CREATE TABLE model_limitations (
    -- The provider, with the version of its settings: changed settings have no limitations.
    provider   text COLLATE "C" NOT NULL,
    model      text COLLATE "C" NOT NULL,
    -- As JSON.
    limitation text COLLATE "C" NOT NULL,
    -- The change of requests to the model.
    change     text COLLATE "C" NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (provider, model, limitation)
);
CREATE INDEX model_limitations_by_expiry ON model_limitations (expires_at);
